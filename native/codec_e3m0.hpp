// e3m0: a sign and three bits of exponent: 0, or ± 2^(code - 7) of the largest magnitude. Metadata: the upper half of
// that. Four bits that have as many codes for the small values as for the large ones.
#pragma once

#include "codec_parts.hpp"

namespace pccl {
namespace {

struct E3M0 {
    static constexpr std::size_t bits = 4;
    template <class Real>
    static constexpr std::size_t metadata = sizeof(Upper<Real>);

    template <class Real, class Rounding>
    static void encode(u8* coded, const Real* values, std::size_t count, Rounding rounding) {
        const Real top = largest(values, count);
        if (write_equals<bits>(coded, values, count, top)) return;
        const Upper<Real> upper = moderate(top) ? step_of(top, 1) : upper_nan<Real>;
        put(coded, upper);
        u8* codes = coded + metadata<Real>;
        const Real unit = whole<Real>(upper);
        if (!(unit > 0)) return write_zeros<bits>(codes, count);
        const Real per_unit = Real{1} / unit;
        Packed<bits>::write(codes, count, [=](std::size_t i) {
            return code_of(static_cast<float>(values[i] * per_unit), rounding.threshold(i));
        });
    }

    template <class Real>
    static void decode(Real* values, const u8* coded, std::size_t count) {
        if (get<Upper<Real>>(coded) == step_of_equals<Real>) return read_equals(values, coded, count);
        const Real unit = whole<Real>(get<Upper<Real>>(coded));
        if (!finite(unit)) return fill_nan(values, count);
        Packed<bits>::read(coded + metadata<Real>, count, [=](std::size_t i, u32 code) {
            const u32 exponent = code & 7u;
            const u32 magnitude = exponent == 0 ? 0u : (exponent + 120u) << 23;
            values[i] = static_cast<Real>(from_bits<float>(magnitude | ((code & 8u) << 28))) * unit;
        });
    }

  private:
    // Between two powers of two the significand says how near the upper one is: adding a threshold of its length to it
    // carries into the exponent if the upper one is to be taken. Below the lowest power there are no more digits.
    static u32 code_of(float value, u32 threshold) {
        const u32 value_bits = bits_of(value);
        const u32 magnitude = value_bits & 0x7fffffffu;
        const u32 exponent = (magnitude + threshold) >> 23;
        const u32 normal = exponent > 127u ? 7u : exponent - 120u;
        // Compared as integers, which have the same order.
        const auto lowest = static_cast<std::int32_t>(bits_of(from_bits<float>(magnitude) * 0x1p29f));
        const auto least = static_cast<std::int32_t>(bits_of(static_cast<float>(static_cast<std::int32_t>(threshold))));
        const u32 small = lowest > least ? 1u : 0u;
        const u32 code = magnitude < (121u << 23) ? small : normal;
        return code == 0 ? 0u : code | ((value_bits >> 28) & 8u);
    }
};

}  // namespace
}  // namespace pccl
