// One variant of all codecs; see kernels.cpp for what a variant is.
#include "codec_e3m0.hpp"
#include "codec_linear.hpp"
#include "codec_minmax.hpp"
#include "codec_zeropoint.hpp"

#define PCCL_JOIN_(a, b) a##b
#define PCCL_JOIN(a, b) PCCL_JOIN_(a, b)

namespace pccl {
namespace {

template <class Codec, class Real>
void encode(u8* coded, const void* values, std::size_t count, const u32* key) {
    constexpr std::size_t least = block_bytes_min[sizeof(Real) == sizeof(double)];
    static_assert(least == sizeof(Upper<Real>) + sizeof(Real));
    if (Codec::template metadata<Real> + (count * Codec::bits + 7) / 8 < least) __builtin_memset(coded, 0, least);
    if (key == nullptr) {
        Codec::encode(coded, static_cast<const Real*>(values), count, Nearest{});
    } else {
        Codec::encode(coded, static_cast<const Real*>(values), count, Stochastic{*key});
    }
}

template <class Codec, class Real>
void decode(void* values, const u8* coded, std::size_t count) {
    Codec::decode(static_cast<Real*>(values), coded, count);
}

template <class Codec>
constexpr CodecKernels kernels_of(const char* name) {
    return {name,
            Codec::bits,
            {Codec::template metadata<float>, Codec::template metadata<double>},
            {encode<Codec, float>, encode<Codec, double>},
            {decode<Codec, float>, decode<Codec, double>}};
}

}  // namespace

extern const CodecKernels PCCL_JOIN(codecs_, PCCL_VARIANT)[codecs];
const CodecKernels PCCL_JOIN(codecs_, PCCL_VARIANT)[codecs] = {
    kernels_of<Linear<8>>("int8"),
    kernels_of<Linear<4>>("int4"),
    kernels_of<E3M0>("e3m0"),
    kernels_of<MinMax<8>>("minmax8"),
    kernels_of<MinMax<16>>("minmax16"),
    kernels_of<ZeroPoint<8>>("zeropoint8"),
    kernels_of<ZeroPoint<16>>("zeropoint16"),
};

}  // namespace pccl
