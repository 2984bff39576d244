// Arithmetic on elements, and the check of a segment's bytes. Pure functions over memory: no sockets, no threads.
//
// kernels.cpp is compiled once per instruction set, into a namespace of its own; `kernels()` picks one at run time, so
// that one binary runs everywhere and is fast where it can be. Every variant gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec.hpp"

namespace pccl {

// Values are those of pccl.types.DataType and pccl.types.ReduceOp.
enum class DataType : std::uint8_t { u8, i8, i16, u16, u32, i32, u64, i64, f16, bf16, f32, f64 };
enum class ReduceOp : std::uint8_t { sum, avg, prod, max, min };

inline constexpr std::size_t data_types = 12;
inline constexpr std::size_t reduce_ops = 5;

inline std::size_t item_size(DataType type) {
    constexpr std::uint8_t sizes[data_types] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return sizes[static_cast<std::size_t>(type)];
}

// out[i] = a[i] op b[i]; out may be a or b. AVG adds: the division comes once, at the end.
using Combine = void (*)(void* out, const void* a, const void* b, std::size_t count);
// values[i] = values[i] / peers, truncated for integers.
using Divide = void (*)(void* values, std::size_t count, std::size_t peers);
// A 64-bit check of bytes. Detects damage, not malice.
using Check = std::uint64_t (*)(const void* bytes, std::size_t length);

// 16-bit floats to float, which is exact, and back, rounded to nearest even.
using Widen = void (*)(float* to, const void* from, std::size_t count);
using Narrow = void (*)(void* to, const float* from, std::size_t count);

// Copy what is read again only after a failure: past the caches where the machine can, which then need not make room.
using SetAside = void (*)(void* to, const void* from, std::size_t bytes);

struct Kernels {
    const char* name;
    Combine combine[data_types][reduce_ops];
    Divide divide[data_types];
    Check check;
    SetAside set_aside;
    Widen widen[data_types];  // null where elements are computed in their own type
    Narrow narrow[data_types];
    const CodecKernels* codecs;
};

// The fastest variant that this machine can run.
const Kernels& kernels();
// All variants that this machine can run, the plainest first; for tests.
std::size_t usable_kernels(const Kernels* found[4]);

}  // namespace pccl
