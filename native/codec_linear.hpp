// int8, int4: whole multiples of a step, from -most to most. Metadata: the upper half of the step.
#pragma once

#include "codec_parts.hpp"

namespace pccl {
namespace {

template <std::size_t code_bits>
struct Linear {
    static constexpr std::size_t bits = code_bits;
    static constexpr int most = (1 << (bits - 1)) - 1;
    template <class Real>
    static constexpr std::size_t metadata = sizeof(Upper<Real>);

    template <class Real, class Rounding>
    static void encode(u8* coded, const Real* values, std::size_t count, Rounding rounding) {
        const Real top = largest(values, count);
        if (write_equals<bits>(coded, values, count, top)) return;
        const Upper<Real> upper = moderate(top) ? step_of(top, most) : upper_nan<Real>;
        put(coded, upper);
        u8* codes = coded + metadata<Real>;
        const Real step = whole<Real>(upper);
        if (!(step > 0)) return write_zeros<bits>(codes, count);
        const Real per_step = Real{1} / step;
        Packed<bits>::write(
            codes, count, [=](std::size_t i) { return integer(rounding.moved(values[i] * per_step, i), -most, most); });
    }

    template <class Real>
    static void decode(Real* values, const u8* coded, std::size_t count) {
        if (get<Upper<Real>>(coded) == step_of_equals<Real>) return read_equals(values, coded, count);
        const Real step = whole<Real>(get<Upper<Real>>(coded));
        if (!finite(step)) return fill_nan(values, count);
        constexpr u32 sign = 1u << (bits - 1);
        Packed<bits>::read(coded + metadata<Real>, count, [=](std::size_t i, u32 code) {
            values[i] = static_cast<Real>(static_cast<std::int32_t>((code ^ sign) - sign)) * step;
        });
    }
};

}  // namespace
}  // namespace pccl
