#include "attempts.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "float_mode.hpp"

namespace pccl {
namespace {

// More idle threads than this end: as many as collectives commonly run side by side.
constexpr std::size_t idle_threads_max = 16;

struct Crew {
    std::mutex mutex;
    std::condition_variable wanted;
    std::deque<std::shared_ptr<Attempt>> waiting;
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
        std::shared_ptr<Attempt> attempt = std::move(shared.waiting.front());
        shared.waiting.pop_front();
        lock.unlock();
        attempt->work();
        attempt.reset();
        lock.lock();
    }
}

}  // namespace

Notifier::Notifier() {
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) throw std::runtime_error("no descriptor left for a notifier");
    fd_ = std::shared_ptr<const int>(new int(fd), [](const int* owned) {
        ::close(*owned);
        delete owned;
    });
}

void Notifier::notify() const {
    const std::uint64_t one = 1;
    // Can only fail when it is full of notifications, and then it is readable.
    [[maybe_unused]] const ssize_t written = ::write(*fd_, &one, sizeof one);
}

void Notifier::clear() const {
    std::uint64_t count = 0;
    // Can only fail when there is nothing to clear.
    [[maybe_unused]] const ssize_t taken = ::read(*fd_, &count, sizeof count);
}

void Attempt::work() {
    const PlainFloats guard;
    report_ = ring_.run();
    ended_.store(true, std::memory_order_release);
    ended_.notify_all();
    notifier_.notify();
}

void Attempt::commit() {
    ended_.wait(false, std::memory_order_acquire);
    const PlainFloats guard;
    ring_.commit();
}

void Attempt::restore() {
    if (!ended()) abort();
    ended_.wait(false, std::memory_order_acquire);
    ring_.restore();
}

void start(std::shared_ptr<Attempt> attempt) {
    Crew& shared = crew();
    const std::lock_guard lock(shared.mutex);
    shared.waiting.push_back(std::move(attempt));
    if (shared.idle >= shared.waiting.size()) {
        shared.wanted.notify_one();
    } else {
        try {
            std::thread(serve).detach();
        } catch (...) {
            shared.waiting.pop_back();  // no thread may work on buffers whose owner was told that it cannot begin
            throw;
        }
    }
}

}  // namespace pccl
