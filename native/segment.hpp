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
    std::uint32_t seal;    // of all the other fields, so that a damaged header is noticed before it is believed
    std::uint64_t check;   // of the payload
};
static_assert(sizeof(Header) == 40);

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the header would have to be converted on this machine"
#endif

// No header may announce more: segments of an older attempt are drained, and a length is not believed without limit.
inline constexpr std::uint32_t segment_bytes_max = 16u << 20;

inline std::uint64_t mixed(std::uint64_t x) {
    return (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
}

// Binds a payload to its place: one that arrives whole but elsewhere is as wrong as a damaged one.
inline std::uint32_t seal_of(const Header& header) {
    std::uint64_t x = mixed(header.tag + 0x9e3779b97f4a7c15u);
    x = mixed(x ^ header.attempt);
    x = mixed(x ^ (header.hop | (static_cast<std::uint64_t>(header.index) << 32)));
    x = mixed(x ^ header.length);
    x = mixed(x ^ header.check);
    return static_cast<std::uint32_t>(x >> 32);
}

}  // namespace pccl
