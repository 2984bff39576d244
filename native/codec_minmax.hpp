// minmax8, minmax16: whole multiples of a step above a base, which is the smallest value. Metadata: the base, and the
// upper half of the step. What PCCL calls MIN_MAX, for each block and rounded to nearest. Equal values have no step:
// all of them are the base.
#pragma once

#include "codec_parts.hpp"

namespace pccl {
namespace {

struct Lowest {
    template <class Real>
    static Real base(Real low, Real, Real, int) {
        return low;
    }
};

template <std::size_t code_bits, class Base = Lowest>
struct MinMax {
    static constexpr std::size_t bits = code_bits;
    static constexpr int most = (1 << bits) - 1;
    template <class Real>
    static constexpr std::size_t metadata = sizeof(Real) + sizeof(Upper<Real>);

    template <class Real, class Rounding>
    static void encode(u8* coded, const Real* values, std::size_t count, Rounding rounding) {
        const auto [low, high] = extremes(values, count);
        const bool sane = (moderate(low) && moderate(high)) || (low == high && finite(low));
        const Upper<Real> upper = sane ? step_of(high - low, most) : upper_nan<Real>;
        const Real step = whole<Real>(upper);
        const Real base = sane ? Base::base(low, high, step, most) : Real{0};
        put(coded, base);
        put(coded + sizeof(Real), upper);
        u8* codes = coded + metadata<Real>;
        if (!(step > 0)) return write_zeros<bits>(codes, count);
        const Real per_step = Real{1} / step;
        Packed<bits>::write(codes, count, [=](std::size_t i) {
            return integer(rounding.moved((values[i] - base) * per_step, i), 0, most);
        });
    }

    template <class Real>
    static void decode(Real* values, const u8* coded, std::size_t count) {
        const Real base = get<Real>(coded);
        const Real step = whole<Real>(get<Upper<Real>>(coded + sizeof(Real)));
        if (!finite(step) || !finite(base)) return fill_nan(values, count);
        Packed<bits>::read(coded + metadata<Real>, count, [=](std::size_t i, u32 code) {
            values[i] = base + static_cast<Real>(static_cast<std::int32_t>(code)) * step;
        });
    }
};

}  // namespace
}  // namespace pccl
