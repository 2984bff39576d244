// The unit that travels over a lane: a header of 40 bytes and a part of one chunk. docs/dataplane.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pccl {

struct Header {  // little endian on the wire, as on every machine this is built for
    std::uint64_t tag;
    std::uint64_t attempt;
    std::uint32_t hop;
    std::uint32_t index;   // of the segment in its chunk
    std::uint32_t length;  // bytes of payload
    std::uint32_t reserved;
    std::uint64_t check;  // of the payload, mixed with its place
};
static_assert(sizeof(Header) == 40);

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the header would have to be converted on this machine"
#endif

// Nobody may announce more: segments of an older attempt are drained, and a length is not to be believed without limit.
inline constexpr std::uint32_t segment_bytes_max = 16u << 20;

// A payload that arrives whole but in the wrong place is as wrong as a damaged one.
inline std::uint64_t placed(std::uint64_t payload_check, std::uint64_t attempt, std::uint32_t hop,
                            std::uint32_t index) {
    return payload_check ^ ((attempt * 0x9e3779b97f4a7c15u) + (static_cast<std::uint64_t>(hop) << 32) + index);
}

}  // namespace pccl
