// Floating point as the kernels promise it, whatever the process has set: round to nearest, and keep subnormal numbers.
//
// A library that was built with -ffast-math, or `torch.set_flush_denormal`, changes the mode of a thread, and threads
// that it starts inherit that. Results that each peer computes for itself would then differ from peer to peer.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace pccl {

class PlainFloats {
  public:
    PlainFloats() : before_(mode()) { set(plain); }
    ~PlainFloats() { set(before_); }
    PlainFloats(const PlainFloats&) = delete;
    PlainFloats& operator=(const PlainFloats&) = delete;

  private:
#if defined(__SSE__)
    using Mode = unsigned int;
    static constexpr Mode plain = 0x1f80;  // all exceptions masked, nothing flushed, round to nearest
    static Mode mode() { return _mm_getcsr(); }
    static void set(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
    using Mode = std::uint64_t;
    static constexpr Mode plain = 0;
    static Mode mode() {
        Mode now;
        asm volatile("mrs %0, fpcr" : "=r"(now));
        return now;
    }
    static void set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else  // a machine whose mode we do not know is left as it is
    using Mode = int;
    static constexpr Mode plain = 0;
    static Mode mode() { return 0; }
    static void set(Mode) {}
#endif
    Mode before_;
};

}  // namespace pccl
