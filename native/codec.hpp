// Codecs: how floats travel as short codes. A codec codes one *block* at a time: some metadata, then the codes, in a
// stretch of bytes whose length follows from the number of elements alone. docs/quantisation.md has the layouts.
//
// The blocks' arithmetic is compiled once per instruction set, as that of kernels.hpp, and gives the same bits in every
// variant. A codec is one header (codec_*.hpp) and its line in codecs.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pccl {

// Both functions compute in float or in double. `key` is where random rounding begins; null rounds to nearest.
using EncodeBlock = void (*)(std::uint8_t* coded, const void* values, std::size_t count, const std::uint32_t* key);
using DecodeBlock = void (*)(void* values, const std::uint8_t* coded, std::size_t count);

struct CodecKernels {
    const char* name;
    std::size_t bits;         // of a code
    std::size_t metadata[2];  // bytes for each block when computed in float, in double
    EncodeBlock encode[2];
    DecodeBlock decode[2];
};

// The order of pccl.codec.CODES; 0 is for none.
inline constexpr std::size_t codecs = 7;

inline constexpr std::size_t block_max = 4096;

struct CodecChoice {
    std::uint32_t id = 0;
    std::uint32_t block = 0;  // elements, a multiple of eight
    bool stochastic = false;
    std::uint64_t seed = 0;
};

// Each block has room for a step and a whole number, so that equal values can be that number however few they are.
inline constexpr std::size_t block_bytes_min[2] = {6, 12};

inline std::size_t block_bytes(const CodecKernels& codec, bool wide, std::size_t elements) {
    const std::size_t bytes = codec.metadata[wide] + (elements * codec.bits + 7) / 8;
    return bytes < block_bytes_min[wide] ? block_bytes_min[wide] : bytes;
}

inline std::size_t coded_bytes(const CodecKernels& codec, std::size_t block, bool wide, std::size_t elements) {
    const std::size_t rest = elements % block;
    return elements / block * block_bytes(codec, wide, block) + (rest == 0 ? 0 : block_bytes(codec, wide, rest));
}

}  // namespace pccl
