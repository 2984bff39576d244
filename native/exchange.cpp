#include "exchange.hpp"

#include <cstring>

#include "float_mode.hpp"

namespace pccl {
namespace {

template <class Bits>
void settle_nans(std::uint8_t* values, std::size_t count, Bits infinity, Bits nan) {
    constexpr Bits without_sign = static_cast<Bits>(~Bits{0}) >> 1;
    for (std::size_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, values + i * sizeof(Bits), sizeof(Bits));
        if ((bits & without_sign) > infinity) std::memcpy(values + i * sizeof(Bits), &nan, sizeof(Bits));
    }
}

void settle_nans(DataType type, std::uint8_t* values, std::size_t count) {
    switch (type) {
        case DataType::f16:
            return settle_nans<std::uint16_t>(values, count, 0x7c00, 0x7e00);
        case DataType::bf16:
            return settle_nans<std::uint16_t>(values, count, 0x7f80, 0x7fc0);
        case DataType::f32:
            return settle_nans<std::uint32_t>(values, count, 0x7f800000, 0x7fc00000);
        case DataType::f64:
            return settle_nans<std::uint64_t>(values, count, 0x7ff0000000000000, 0x7ff8000000000000);
        default:
            return;
    }
}

}  // namespace

void reduce_all(DataType type, ReduceOp op, std::uint8_t* out, const std::vector<const std::uint8_t*>& contributions,
                std::size_t count) {
    const PlainFloats guard;
    const Kernels& use = kernels();
    const auto element = static_cast<std::size_t>(type);
    std::memcpy(out, contributions.at(0), count * item_size(type));
    for (std::size_t rank = 1; rank < contributions.size(); ++rank) {
        use.combine[element][static_cast<std::size_t>(op)](out, out, contributions[rank], count);
    }
    if (op == ReduceOp::avg) use.divide[element](out, count, contributions.size());
    settle_nans(type, out, count);
}

void encode_contribution(const Coding& coding, std::uint8_t* coded, const Stretch& own, std::uint64_t draw) {
    const PlainFloats guard;
    coding.encode(coded, own, coding.stream(draw, 0, 0));
}

void reduce_all(const Coding& coding, DataType type, std::uint8_t* out,
                const std::vector<const std::uint8_t*>& contributions, std::size_t count) {
    const PlainFloats guard;
    coding.reduce_all(out, contributions.data(), contributions.size(), count);
    settle_nans(type, out, count);
}

}  // namespace pccl
