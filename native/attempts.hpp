// Attempts on threads of their own, one for each strand. Threads are kept for the next attempt: waking one costs less
// than starting one.
//
// Strand s of S has the segments with index s modulo S and the lanes with place s modulo S, at both ends of every lane:
// a ring like any other, that shares nothing with the other strands. The first that fails stops the rest.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "notifier.hpp"
#include "ring.hpp"

namespace pccl {

class Attempt {
  public:
    Attempt(const Plan& plan, const Memory& memory, const std::vector<Channel>& next, const std::vector<Channel>& prev,
            Notifier notifier);

    std::uint32_t strands() const { return static_cast<std::uint32_t>(rings_.size()); }
    // Each once, and each by another thread: those of one peer wait for their like at the next, not for each other.
    void work(std::uint32_t strand);
    void abort();
    bool ended() const { return ended_.load(std::memory_order_acquire); }
    const Report& report() const { return report_; }  // only after it has ended
    // The result stands: make it complete; waits for its end first.
    void commit();
    // Put the input back; stops and waits for its end first if need be.
    void restore();
    std::uint64_t moved_bytes() const;

  private:
    void fold() noexcept;

    Notifier wake_{};
    std::vector<std::unique_ptr<Ring>> rings_;
    std::vector<Report> reports_;
    std::atomic<std::uint32_t> working_;
    std::atomic<const Report*> failed_{nullptr};  // the first of them
    Notifier notifier_;
    Report report_;  // it has room for all that it may say: the last strand has no other thread to fail in
    std::atomic<bool> ended_{false};
};

// Let threads do the attempt's work; returns at once.
void start(std::shared_ptr<Attempt> attempt);

}  // namespace pccl
