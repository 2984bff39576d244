#include "coding.hpp"

#include <algorithm>

#include "segment.hpp"

namespace pccl {
namespace {

// Blocks are read twice, and only the first time from memory: the machine does not look ahead during the second. Of a
// long block the beginning is enough; all of it would push the present one out of the cache.
constexpr std::size_t ahead_bytes_max = 4096;

void prefetch(const std::uint8_t* begin, std::size_t bytes) {
    constexpr std::size_t line = 64;
    for (std::size_t at = 0; at < std::min(bytes, ahead_bytes_max); at += line) __builtin_prefetch(begin + at);
}

// A sum that is no number has lost nothing that could be made good.
template <class Real>
void note_lost(Real* lost, const Real* sum, const Real* decoded, std::size_t count, std::size_t peers) {
    const auto factor = static_cast<Real>(peers);
    for (std::size_t i = 0; i < count; ++i) {
        const Real missing = (sum[i] - decoded[i]) * factor;
        lost[i] = decoded[i] == decoded[i] ? missing : Real{0};
    }
}

}  // namespace

Coding::Coding(const CodecChoice& choice, DataType type, ReduceOp op, const Feedback& feedback)
    : choice_(choice),
      type_(type),
      op_(op),
      feedback_(feedback),
      kernels_(kernels()),
      codec_(kernels_.codecs[choice.id - 1]),
      wide_(type == DataType::f64),
      item_(item_size(type)) {}

std::uint64_t Coding::stream(std::uint64_t tag, std::uint64_t attempt, std::uint64_t hop) const {
    std::uint64_t x = mixed(choice_.seed + 0x9e3779b97f4a7c15u);
    x = mixed(x ^ tag);
    x = mixed(x ^ attempt);
    return mixed(x ^ hop);
}

void Coding::encode(std::uint8_t* coded, const Stretch& own, std::uint64_t stream) const {
    code_either(coded, own, stream, {});
}

void Coding::fold(std::uint8_t* coded, const Stretch& own, std::uint64_t stream) const {
    code_either(coded, own, stream, {true, 1});
}

void Coding::finish(std::uint8_t* coded, const Stretch& own, std::uint64_t stream, std::size_t peers) const {
    code_either(coded, own, stream, {true, op_ == ReduceOp::avg ? peers : 1});
}

void Coding::decode(std::uint8_t* output, const std::uint8_t* coded, std::size_t count) const {
    wide_ ? decode_all<double>(output, &coded, 1, count) : decode_all<float>(output, &coded, 1, count);
}

void Coding::reduce_all(std::uint8_t* output, const std::uint8_t* const* contributions, std::size_t peers,
                        std::size_t count) const {
    wide_ ? decode_all<double>(output, contributions, peers, count)
          : decode_all<float>(output, contributions, peers, count);
}

void Coding::code_either(std::uint8_t* coded, const Stretch& own, std::uint64_t stream,
                         const Treatment& treatment) const {
    wide_ ? code<double>(coded, own, stream, treatment) : code<float>(coded, own, stream, treatment);
}

template <class Real>
void Coding::code(std::uint8_t* coded, const Stretch& own, std::uint64_t stream, const Treatment& treatment) const {
    Real mine[block_max];
    Real sum[block_max];
    Real decoded[block_max];
    const auto real = static_cast<std::size_t>(wide_ ? DataType::f64 : DataType::f32);
    const Combine add = kernels_.combine[real][static_cast<std::size_t>(ReduceOp::sum)];
    const Combine combine = kernels_.combine[real][static_cast<std::size_t>(op_)];
    const Real* carried = reinterpret_cast<const Real*>(feedback_.carried);
    Real* lost = reinterpret_cast<Real*>(feedback_.lost);
    for (std::size_t at = 0; at < own.count; at += choice_.block) {
        const std::size_t count = std::min<std::size_t>(choice_.block, own.count - at);
        const std::size_t after = std::min<std::size_t>(choice_.block, own.count - at - count);
        prefetch(own.values + (at + count) * item_, after * item_);
        const Real* values = widened(mine, own.values + at * item_, count);
        if (carried != nullptr) {
            add(mine, values, carried + own.first + at, count);
            values = mine;
        }
        if (treatment.fold) {
            codec_.decode[wide_](sum, coded, count);
            combine(sum, sum, values, count);
            if (treatment.peers > 1) kernels_.divide[real](sum, count, treatment.peers);
            values = sum;
        }
        const auto key = static_cast<std::uint32_t>(mixed(mixed(stream ^ (own.first + at))) >> 32);
        codec_.encode[wide_](coded, values, count, choice_.stochastic ? &key : nullptr);
        if (lost != nullptr) {
            codec_.decode[wide_](decoded, coded, count);
            note_lost(lost + own.first + at, values, decoded, count, treatment.peers);
        }
        coded += bytes(count);
    }
}

template <class Real>
void Coding::decode_all(std::uint8_t* output, const std::uint8_t* const* contributions, std::size_t peers,
                        std::size_t count) const {
    Real room[block_max];
    Real other[block_max];
    const auto real = static_cast<std::size_t>(wide_ ? DataType::f64 : DataType::f32);
    const Combine combine = kernels_.combine[real][static_cast<std::size_t>(op_)];
    for (std::size_t at = 0; at < count; at += choice_.block) {
        const std::size_t elements = std::min<std::size_t>(choice_.block, count - at);
        const std::size_t begin = bytes(at);
        Real* sum = room_in(room, output + at * item_);
        codec_.decode[wide_](sum, contributions[0] + begin, elements);
        for (std::size_t rank = 1; rank < peers; ++rank) {
            codec_.decode[wide_](other, contributions[rank] + begin, elements);
            combine(sum, sum, other, elements);
        }
        if (op_ == ReduceOp::avg && peers > 1) kernels_.divide[real](sum, elements, peers);
        store(output + at * item_, sum, elements);
    }
}

// ── elements and the numbers that they are computed in ───────────────────────────────────────────────────────────────

template <class Real>
const Real* Coding::widened(Real* room, const std::uint8_t* values, std::size_t count) const {
    const Widen widen = kernels_.widen[static_cast<std::size_t>(type_)];
    if (widen == nullptr) return reinterpret_cast<const Real*>(values);
    widen(reinterpret_cast<float*>(room), values, count);
    return room;
}

// Where decoded numbers can stand: in the output itself if that is what it holds.
template <class Real>
Real* Coding::room_in(Real* room, std::uint8_t* output) const {
    const bool same = kernels_.narrow[static_cast<std::size_t>(type_)] == nullptr;
    return same ? reinterpret_cast<Real*>(output) : room;
}

template <class Real>
void Coding::store(std::uint8_t* output, const Real* values, std::size_t count) const {
    const Narrow narrow = kernels_.narrow[static_cast<std::size_t>(type_)];
    if (narrow != nullptr) narrow(output, reinterpret_cast<const float*>(values), count);
}

}  // namespace pccl
