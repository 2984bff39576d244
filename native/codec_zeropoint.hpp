// zeropoint8, zeropoint16: whole multiples of a step around the code that stands for zero. Metadata: the upper half of
// the step, and that code. What PCCL calls ZERO_POINT_SCALE, for each block; signed and unsigned codes are the same,
// one shifted against the other.
#pragma once

#include "codec_parts.hpp"

namespace pccl {
namespace {

template <std::size_t code_bits>
struct ZeroPoint {
    static constexpr std::size_t bits = code_bits;
    static constexpr int most = (1 << bits) - 1;
    template <class Real>
    static constexpr std::size_t metadata = sizeof(Upper<Real>) + sizeof(u16);

    template <class Real, class Rounding>
    static void encode(u8* coded, const Real* values, std::size_t count, Rounding rounding) {
        const auto [least, greatest] = extremes(values, count);
        const bool sane = moderate(least) && moderate(greatest);
        const Real low = least < 0 ? least : Real{0};
        const Real high = greatest > 0 ? greatest : Real{0};
        const Upper<Real> upper = sane ? step_of(high - low, most) : upper_nan<Real>;
        const Real step = whole<Real>(upper);
        put(coded, upper);
        u8* codes = coded + metadata<Real>;
        if (!(step > 0)) {
            put(coded + sizeof(Upper<Real>), u16{0});
            return write_zeros<bits>(codes, count);
        }
        const Real per_step = Real{1} / step;
        const u32 zero = integer(-low * per_step, 0, most);
        put(coded + sizeof(Upper<Real>), static_cast<u16>(zero));
        const auto shift = static_cast<Real>(static_cast<std::int32_t>(zero));
        Packed<bits>::write(codes, count, [=](std::size_t i) {
            return integer(rounding.moved(values[i] * per_step + shift, i), 0, most);
        });
    }

    template <class Real>
    static void decode(Real* values, const u8* coded, std::size_t count) {
        const Real step = whole<Real>(get<Upper<Real>>(coded));
        if (!finite(step)) return fill_nan(values, count);
        const auto zero = static_cast<std::int32_t>(get<u16>(coded + sizeof(Upper<Real>)));
        Packed<bits>::read(coded + metadata<Real>, count, [=](std::size_t i, u32 code) {
            values[i] = static_cast<Real>(static_cast<std::int32_t>(code) - zero) * step;
        });
    }
};

}  // namespace
}  // namespace pccl
