// Attempts on threads of their own. Threads are kept for the next attempt: waking one costs less than starting one.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "ring.hpp"

namespace pccl {

// How attempts tell an event loop that they have ended: a descriptor that becomes readable. Copies share the
// descriptor, and the last one closes it: never while another is in use, and never by way of Python, whose lock a
// native thread must not take.
class Notifier {
  public:
    Notifier();

    int fd() const { return *fd_; }
    void notify() const;
    void clear() const;

  private:
    std::shared_ptr<const int> fd_;
};

class Attempt {
  public:
    Attempt(const Plan& plan, const Memory& memory, const std::vector<Channel>& next, const std::vector<Channel>& prev,
            Notifier notifier)
        : ring_(plan, memory, next, prev), notifier_(std::move(notifier)) {}

    void work();
    void abort() { ring_.abort(); }
    bool ended() const { return ended_.load(std::memory_order_acquire); }
    const Report& report() const { return report_; }  // only after it has ended
    // The result stands: make it complete; waits for its end first.
    void commit();
    // Put the input back; stops and waits for its end first if need be.
    void restore();
    std::uint64_t moved_bytes() const { return ring_.moved_bytes(); }

  private:
    Ring ring_;
    Notifier notifier_;
    Report report_;
    std::atomic<bool> ended_{false};
};

// Let a thread do the attempt's work; returns at once.
void start(std::shared_ptr<Attempt> attempt);

}  // namespace pccl
