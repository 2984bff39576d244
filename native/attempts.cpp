#include "attempts.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "float_mode.hpp"

namespace pccl {
namespace {

// More idle threads than this end: as many as collectives commonly run side by side.
constexpr std::size_t idle_threads_max = 16;

struct Job {
    std::shared_ptr<Attempt> attempt;
    std::uint32_t strand = 0;
};

struct Crew {
    std::mutex mutex;
    std::condition_variable wanted;
    std::deque<Job> waiting;
    std::size_t idle = 0;
};

// Never destroyed: a thread may still look at it while the process exits.
Crew& crew() {
    static Crew* const one = new Crew;
    return *one;
}

void serve() {
    Crew& shared = crew();
    std::unique_lock lock(shared.mutex);
    for (;;) {
        if (shared.waiting.empty()) {
            if (shared.idle == idle_threads_max) return;
            ++shared.idle;
            shared.wanted.wait(lock, [&] { return !shared.waiting.empty(); });
            --shared.idle;
        }
        Job job = std::move(shared.waiting.front());
        shared.waiting.pop_front();
        lock.unlock();
        job.attempt->work(job.strand);
        job.attempt.reset();
        lock.lock();
    }
}

std::vector<Channel> of_strand(const std::vector<Channel>& lanes, const Plan& plan) {
    std::vector<Channel> own;
    for (std::size_t place = plan.strand; place < lanes.size(); place += plan.strands) own.push_back(lanes[place]);
    return own;
}

}  // namespace

Attempt::Attempt(const Plan& plan, const Memory& memory, const std::vector<Channel>& next,
                 const std::vector<Channel>& prev, Notifier notifier)
    : reports_(plan.strands), working_(plan.strands), notifier_(std::move(notifier)) {
    report_.broken_next.reserve(next.size());
    report_.broken_prev.reserve(prev.size());
    report_.rests.reserve(prev.size());
    Plan part = plan;
    part.bytes_min_s = plan.bytes_min_s / plan.strands;  // the least rate is that of the whole attempt
    for (part.strand = 0; part.strand < plan.strands; ++part.strand) {
        rings_.push_back(std::make_unique<Ring>(part, memory, of_strand(next, part), of_strand(prev, part), wake_));
    }
}

void Attempt::work(std::uint32_t strand) {
    const PlainFloats guard;
    Report& report = reports_[strand] = rings_[strand]->run();
    const Report* none = nullptr;
    if (!report.cause.empty() && failed_.compare_exchange_strong(none, &report)) abort();
    if (working_.fetch_sub(1) > 1) return;
    fold();
    ended_.store(true, std::memory_order_release);
    ended_.notify_all();
    notifier_.notify();
}

// All strands are at their end: one report of them. It takes theirs apart, and no memory.
void Attempt::fold() noexcept {
    if (failed_.load() != nullptr) report_.cause = std::move(reports_[failed_.load() - reports_.data()].cause);
    for (std::uint32_t strand = 0; strand < strands(); ++strand) {
        Report& part = reports_[strand];
        const auto place = [&](std::uint32_t lane) { return strand + lane * strands(); };
        for (const std::uint32_t lane : part.broken_next) report_.broken_next.push_back(place(lane));
        for (const std::uint32_t lane : part.broken_prev) report_.broken_prev.push_back(place(lane));
        for (Rest& rest : part.rests) report_.rests.push_back({place(rest.lane), rest.skip, std::move(rest.head)});
        report_.sent_bytes += part.sent_bytes;
        report_.received_bytes += part.received_bytes;
        report_.repeated_bytes += part.repeated_bytes;
        if (part.checks.size() > report_.checks.size()) std::swap(part.checks, report_.checks);
        for (std::size_t i = 0; i < part.checks.size(); ++i) report_.checks[i] |= part.checks[i];
    }
}

void Attempt::abort() {
    for (const auto& ring : rings_) ring->stop();
    wake_.notify();
}

std::uint64_t Attempt::moved_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& ring : rings_) sum += ring->moved_bytes();
    return sum;
}

void Attempt::commit() {
    ended_.wait(false, std::memory_order_acquire);
    const PlainFloats guard;
    for (const auto& ring : rings_) ring->commit();
}

void Attempt::restore() {
    if (!ended()) abort();
    ended_.wait(false, std::memory_order_acquire);
    for (const auto& ring : rings_) ring->restore();
}

void start(std::shared_ptr<Attempt> attempt) {
    Crew& shared = crew();
    const std::lock_guard lock(shared.mutex);  // to the end: none of it begins before all of it can
    const std::size_t before = shared.waiting.size();
    try {
        for (std::uint32_t strand = 0; strand < attempt->strands(); ++strand) {
            shared.waiting.push_back({attempt, strand});
            if (shared.idle >= shared.waiting.size()) {
                shared.wanted.notify_one();
            } else {
                std::thread(serve).detach();
            }
        }
    } catch (...) {
        // No thread may work on buffers whose owner was told that it cannot begin.
        shared.waiting.resize(before);
        throw;
    }
}

}  // namespace pccl
