// What codecs are made of. Only for codecs.cpp, which is compiled per instruction set: all of it is local to that file,
// and only plain loops over plain types, for the reason that kernels.cpp gives.
//
// Bits must not depend on the machine or on the order of a loop: extremes are found among integers, where NaN has a
// place; every operation is rounded by itself, in the order written; a step has half the digits of a number, so that
// its product with any code is exact.
#pragma once

#include "codec.hpp"

namespace pccl {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class Real>
struct Number;

template <>
struct Number<float> {
    using Bits = u32;
    using Signed = std::int32_t;
    using Upper = u16;  // the upper half of a number
    static constexpr int upper_shift = 16;
    static constexpr Bits infinity = 0x7f800000u;
    static constexpr Bits quiet_nan = 0x7fc00000u;
    static constexpr float to_integer = 0x1.8p23f;  // what is added to it ends as an integer in the low bits
    static constexpr float smallest = 0x1p-126f;    // the smallest with all its digits
    static constexpr float too_large = 0x1p126f;    // from here on a range or a decoded number could overflow
};

template <>
struct Number<double> {
    using Bits = u64;
    using Signed = std::int64_t;
    using Upper = u32;
    static constexpr int upper_shift = 32;
    static constexpr Bits infinity = 0x7ff0000000000000u;
    static constexpr Bits quiet_nan = 0x7ff8000000000000u;
    static constexpr double to_integer = 0x1.8p52;
    static constexpr double smallest = 0x1p-1022;
    static constexpr double too_large = 0x1p1022;
};

template <class Real>
using Bits = typename Number<Real>::Bits;
template <class Real>
using Signed = typename Number<Real>::Signed;
template <class Real>
using Upper = typename Number<Real>::Upper;

template <class Real>
constexpr Bits<Real> sign_bit = Bits<Real>{1} << (8 * sizeof(Real) - 1);

template <class Real>
inline Bits<Real> bits_of(Real value) {
    Bits<Real> bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <class Real>
inline Real from_bits(Bits<Real> bits) {
    Real value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

template <class Value>
inline void put(u8* to, Value value) {
    __builtin_memcpy(to, &value, sizeof value);
}

template <class Value>
inline Value get(const u8* from) {
    Value value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

// ── extremes ─────────────────────────────────────────────────────────────────────────────────────────────────────────

// The largest magnitude; infinity or NaN if there is one.
template <class Real>
inline Real largest(const Real* values, std::size_t count) {
    Signed<Real> most = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto magnitude = static_cast<Signed<Real>>(bits_of(values[i]) & ~sign_bit<Real>);
        most = magnitude > most ? magnitude : most;
    }
    return from_bits<Real>(static_cast<Bits<Real>>(most));
}

template <class Real>
struct Extremes {
    Real low;
    Real high;
};

// Integers in the order of the numbers whose bits they were, NaN beyond the infinities; and the way back.
template <class Real>
inline Signed<Real> ordered(Signed<Real> bits) {
    return bits ^ static_cast<Signed<Real>>(static_cast<Bits<Real>>(bits >> (8 * sizeof(Real) - 1)) >> 1);
}

template <class Real>
inline Extremes<Real> extremes(const Real* values, std::size_t count) {
    Signed<Real> low = ordered<Real>(static_cast<Signed<Real>>(bits_of(values[0])));
    Signed<Real> high = low;
    for (std::size_t i = 0; i < count; ++i) {
        const Signed<Real> value = ordered<Real>(static_cast<Signed<Real>>(bits_of(values[i])));
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    // Zeros are positive from here on.
    return {from_bits<Real>(static_cast<Bits<Real>>(ordered<Real>(low))) + Real{0},
            from_bits<Real>(static_cast<Bits<Real>>(ordered<Real>(high))) + Real{0}};
}

template <class Real>
inline bool moderate(Real value) {  // false for NaN
    return value < Number<Real>::too_large && value > -Number<Real>::too_large;
}

// ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────

// The upper half of a positive number, rounded up: no code gets larger than it may.
template <class Real>
inline Upper<Real> upper_of(Real step) {
    constexpr Bits<Real> lower = (Bits<Real>{1} << Number<Real>::upper_shift) - 1;
    return static_cast<Upper<Real>>((bits_of(step) + lower) >> Number<Real>::upper_shift);
}

template <class Real>
inline Real whole(Upper<Real> upper) {
    return from_bits<Real>(static_cast<Bits<Real>>(upper) << Number<Real>::upper_shift);
}

// A step for so many codes to a range that is not negative; nothing for a range too short to have one.
template <class Real>
inline Upper<Real> step_of(Real range, int codes) {
    const auto many = static_cast<Real>(codes);
    return range < many * Number<Real>::smallest ? Upper<Real>{0} : upper_of<Real>(range / many);
}

template <class Real>
constexpr Upper<Real> upper_nan = static_cast<Upper<Real>>(Number<Real>::quiet_nan >> Number<Real>::upper_shift);

template <class Real>
inline bool finite(Real value) {
    return (bits_of(value) & ~sign_bit<Real>) < Number<Real>::infinity;
}

template <class Real>
inline void fill_nan(Real* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = from_bits<Real>(Number<Real>::quiet_nan);
}

// ── rounding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Nearest {
    template <class Real>
    Real moved(Real value, std::size_t) const {
        return value;
    }
    u32 threshold(std::size_t) const { return 1u << 22; }
};

// Up or down with the odds of the place between two neighbours, from a number of its own for each element.
struct Stochastic {
    u32 key;

    u32 drawn(std::size_t i) const {
        u32 x = key + static_cast<u32>(i) * 0x9e3779b9u;
        x = (x ^ (x >> 16)) * 0x85ebca6bu;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        return x ^ (x >> 16);
    }
    template <class Real>
    Real moved(Real value, std::size_t i) const {  // by less than a half, in 4096 equal steps
        const auto part = static_cast<Real>(static_cast<std::int32_t>(drawn(i) >> 20));
        return value + (part * Real{0x1p-12f} - Real{0.5f - 0x1p-13f});
    }
    u32 threshold(std::size_t i) const { return drawn(i) >> 9; }
};

// The nearest integer, ties to even, but none beyond the bounds; of numbers of less than 22 bits.
template <class Real>
inline u32 integer(Real value, std::int32_t low, std::int32_t high) {
    constexpr auto zero = static_cast<u32>(__builtin_bit_cast(Bits<Real>, Number<Real>::to_integer));
    const auto nearest = static_cast<std::int32_t>(static_cast<u32>(bits_of(value + Number<Real>::to_integer)) - zero);
    const std::int32_t above = nearest < low ? low : nearest;
    return static_cast<u32>(above > high ? high : above);
}

// ── codes in bytes ───────────────────────────────────────────────────────────────────────────────────────────────────

// Codes of 16 bits stand wherever the metadata ends.
typedef u16 __attribute__((aligned(1), may_alias)) loose_u16;

template <std::size_t bits>
struct Packed;

template <>
struct Packed<8> {
    template <class Code>
    static void write(u8* to, std::size_t count, Code code) {
        for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<u8>(code(i));
    }
    template <class Take>
    static void read(const u8* from, std::size_t count, Take take) {
        for (std::size_t i = 0; i < count; ++i) take(i, u32{from[i]});
    }
};

template <>
struct Packed<16> {
    template <class Code>
    static void write(u8* to, std::size_t count, Code code) {
        loose_u16* codes = reinterpret_cast<loose_u16*>(to);
        for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<u16>(code(i));
    }
    template <class Take>
    static void read(const u8* from, std::size_t count, Take take) {
        const loose_u16* codes = reinterpret_cast<const loose_u16*>(from);
        for (std::size_t i = 0; i < count; ++i) take(i, u32{codes[i]});
    }
};

template <>
struct Packed<4> {  // byte k: code k below, code k + half above. So both halves are read and written in their order.
    template <class Code>
    static void write(u8* to, std::size_t count, Code code) {
        const std::size_t half = (count + 1) / 2;
        const std::size_t pairs = count / 2;
        for (std::size_t i = 0; i < pairs; ++i) {
            to[i] = static_cast<u8>((code(i) & 15u) | (code(half + i) << 4));
        }
        if (pairs < half) to[pairs] = static_cast<u8>(code(pairs) & 15u);
    }
    template <class Take>
    static void read(const u8* from, std::size_t count, Take take) {
        const std::size_t half = (count + 1) / 2;
        for (std::size_t i = 0; i < half; ++i) take(i, from[i] & 15u);
        for (std::size_t i = half; i < count; ++i) take(i, static_cast<u32>(from[i - half] >> 4));
    }
};

template <std::size_t bits>
inline void write_zeros(u8* to, std::size_t count) {
    __builtin_memset(to, 0, (count * bits + 7) / 8);
}

// ── equal values ─────────────────────────────────────────────────────────────────────────────────────────────────────

// The step of a block whose values are all the same: minus zero, which no range has. Behind it stands that value, where
// the codes would be. Zeros need none of this: their step is zero.
template <class Real>
constexpr Upper<Real> step_of_equals = static_cast<Upper<Real>>(sign_bit<Real> >> Number<Real>::upper_shift);

template <class Real>
inline bool all_equal(const Real* values, std::size_t count) {
    if (bits_of(values[0]) != bits_of(values[count - 1])) return false;            // nearly always
    return __builtin_memcmp(values, values + 1, (count - 1) * sizeof(Real)) == 0;  // each is the one behind it
}

// Whether the block, whose largest magnitude this is, was written as one value.
template <std::size_t bits, class Real>
inline bool write_equals(u8* coded, const Real* values, std::size_t count, Real top) {
    if (!all_equal(values, count) || !finite(top) || bits_of(top) == 0) return false;
    write_zeros<bits>(coded + sizeof(Upper<Real>), count);
    put(coded, step_of_equals<Real>);
    put(coded + sizeof(Upper<Real>), values[0]);
    return true;
}

template <class Real>
inline void read_equals(Real* values, const u8* coded, std::size_t count) {
    const Real value = get<Real>(coded + sizeof(Upper<Real>));
    if (!finite(value)) return fill_nan(values, count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value;
}

}  // namespace
}  // namespace pccl
