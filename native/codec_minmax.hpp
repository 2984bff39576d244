// minmax8, minmax16: whole multiples of a step above the smallest value. Metadata: that value, and the upper half of
// the step. What PCCL calls MIN_MAX, for each block and rounded to nearest.
#pragma once

#include "codec_parts.hpp"

namespace pccl {
namespace {

template <std::size_t code_bits>
struct MinMax {
    static constexpr std::size_t bits = code_bits;
    static constexpr int most = (1 << bits) - 1;
    template <class Real>
    static constexpr std::size_t metadata = sizeof(Real) + sizeof(Upper<Real>);

    template <class Real, class Rounding>
    static void encode(u8* coded, const Real* values, std::size_t count, Rounding rounding) {
        const auto [low, high] = extremes(values, count);
        const bool sane = moderate(low) && moderate(high);
        const Upper<Real> upper = sane ? step_of(high - low, most) : upper_nan<Real>;
        put(coded, sane ? low : Real{0});
        put(coded + sizeof(Real), upper);
        u8* codes = coded + metadata<Real>;
        const Real step = whole<Real>(upper);
        if (!(step > 0)) return write_zeros<bits>(codes, count);
        const Real per_step = Real{1} / step;
        Packed<bits>::write(codes, count, [=, from = low](std::size_t i) {
            return integer(rounding.moved((values[i] - from) * per_step, i), 0, most);
        });
    }

    template <class Real>
    static void decode(Real* values, const u8* coded, std::size_t count) {
        const Real low = get<Real>(coded);
        const Real step = whole<Real>(get<Upper<Real>>(coded + sizeof(Real)));
        if (!finite(step) || !finite(low)) return fill_nan(values, count);
        Packed<bits>::read(coded + metadata<Real>, count, [=](std::size_t i, u32 code) {
            values[i] = low + static_cast<Real>(static_cast<std::int32_t>(code)) * step;
        });
    }
};

}  // namespace
}  // namespace pccl
