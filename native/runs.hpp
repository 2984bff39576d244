// Runs on threads of their own. Threads are kept for the next run: waking one costs less than starting one.
#pragma once

#include <atomic>
#include <memory>

#include "ring.hpp"

namespace pccl {

class Run {
  public:
    // `notify` is an eventfd of the caller's: it becomes readable when the run has ended.
    Run(const Plan& plan, const std::uint8_t* input, std::uint8_t* output, const std::vector<int>& next,
        const std::vector<int>& prev, int notify)
        : ring_(plan, input, output, next, prev), notify_(notify) {}

    void work();
    void abort() { ring_.abort(); }
    bool ended() const { return ended_.load(std::memory_order_acquire); }
    // These two only after it has ended.
    const Report& report() const { return report_; }
    void restore() { ring_.restore(); }
    std::uint64_t moved_bytes() const { return ring_.moved_bytes(); }

  private:
    Ring ring_;
    int notify_;
    Report report_;
    std::atomic<bool> ended_{false};
};

// Let a thread do the run's work; returns at once.
void start(std::shared_ptr<Run> run);

}  // namespace pccl
