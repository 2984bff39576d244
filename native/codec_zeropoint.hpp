// zeropoint8, zeropoint16: minmax with another base where zero lies within the range: the multiple of the step that is
// nearest to the smallest value, so that one of the codes stands for zero itself. What PCCL calls ZERO_POINT_SCALE, for
// each block; signed and unsigned codes are the same, one shifted against the other. Values that are all of one sign
// are as in minmax: codes from there to zero would be wasted.
#pragma once

#include "codec_minmax.hpp"

namespace pccl {
namespace {

struct OnZero {
    template <class Real>
    static Real base(Real low, Real high, Real step, int most) {
        if (low > 0 || high < 0) return low;
        if (!(step > 0)) return Real{0};
        const u32 zero = integer(-low * (Real{1} / step), 0, most);
        return Real{0} - static_cast<Real>(static_cast<std::int32_t>(zero)) * step;
    }
};

template <std::size_t code_bits>
using ZeroPoint = MinMax<code_bits, OnZero>;

}  // namespace
}  // namespace pccl
