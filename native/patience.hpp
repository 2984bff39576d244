// How long an attempt may go on: time uses its patience up, and what moves gives some back.
//
// Owns when an attempt has stalled. `dataplane/patience.py` is its twin, and says why the numbers are what they are.
// Does not look at a clock. Must not know what the bytes are.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pccl {

class Patience {
  public:
    Patience(double stall_s, double bytes_min_s, std::uint64_t segments)
        : stall_s_(stall_s), left_s_(stall_s), byte_s_(bytes_min_s > 0 ? 1 / bytes_min_s : stall_s) {
        segment_s_ =
            std::max(segment_worth_s, spread * stall_s / static_cast<double>(std::max<std::uint64_t>(segments, 1)));
    }

    // So much time has passed, so many bytes of this attempt have moved, so many of its segments are complete.
    void pass(double seconds, std::uint64_t bytes, std::uint64_t segments) {
        seconds = std::min(seconds, turn_max_s);
        idle_s_ = bytes > 0 ? 0 : idle_s_ + seconds;
        left_s_ += static_cast<double>(bytes) * byte_s_ + static_cast<double>(segments) * segment_s_;
        left_s_ = std::min(left_s_, stall_s_) - seconds;
    }

    bool over() const { return stall_s_ > 0 && left_s_ < 0; }
    const char* cause() const {
        return idle_s_ >= stall_s_ ? "no byte moved for too long" : "too few bytes moved for too long";
    }

  private:
    static constexpr double segment_worth_s = 2;
    static constexpr double spread = 4;
    static constexpr double turn_max_s = 0.5;

    double stall_s_;
    double left_s_;
    double byte_s_;
    double segment_s_;
    double idle_s_ = 0;
};

}  // namespace pccl
