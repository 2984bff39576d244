// Which chunk travels in which hop, what becomes of it, and where its segments lie: all that tells one kind of
// collective from another. Pure. docs/dataplane.md draws it; pccl/dataplane/ring/segments.py is its twin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace pccl {

// Values are those of pccl.types.CollectiveKind.
enum class Kind : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter };

struct Plan {
    std::uint64_t tag = 0;
    std::uint64_t attempt = 0;
    std::uint64_t count = 0;  // elements that each peer brings
    std::uint32_t rank = 0;
    std::uint32_t size = 0;
    std::uint32_t root = 0;  // the rank whose tensor a broadcast spreads
    std::uint32_t segment_bytes = 0;
    std::uint32_t strand = 0;   // which of the strands this is ...
    std::uint32_t strands = 1;  // ... that the attempt is divided into: segments by their index, lanes by their place
    Kind kind = Kind::all_reduce;
    DataType type = DataType::f32;
    ReduceOp op = ReduceOp::sum;
    CodecChoice codec;               // how elements travel in an all-reduce; the other kinds have none
    double stall_s = 0;              // no byte in either direction for this long is a failure ...
    double bytes_min_s = 0;          // ... and so are fewer than these a second; 0: any byte is progress
    std::uint32_t repeat_every = 0;  // for tests: every so many segments one is sent again, though none hangs
};

// What becomes of a segment that arrives.
enum class Treatment { reduce, finish, copy };

// Where a segment lies: offsets in bytes. Only what its treatment reads and writes has a meaning.
struct Place {
    std::size_t input;
    std::size_t output;
    std::size_t bytes;
    std::size_t elements;
    std::size_t wire;  // bytes of it on a lane
};

inline constexpr std::uint32_t no_chunk = ~std::uint32_t{0};

class Route {
  public:
    explicit Route(const Plan& plan)
        : plan_(plan),
          item_(item_size(plan.type)),
          elements_(plan.kind == Kind::all_gather ? plan.count * plan.size : plan.count),
          chunks_(plan.kind == Kind::broadcast ? 1 : plan.size),
          codec_(plan.codec.id == 0 ? nullptr : &kernels().codecs[plan.codec.id - 1]),
          block_(codec_ == nullptr ? 1 : plan.codec.block),
          // Whole blocks: however a chunk is cut into segments, its blocks are the same.
          per_segment_(std::max<std::size_t>(1, plan.segment_bytes / item_ / block_) * block_) {}

    std::uint32_t hops() const { return plan_.kind == Kind::all_reduce ? 2 * (plan_.size - 1) : plan_.size - 1; }
    // In the first so many hops shares are added.
    std::uint32_t reducing_hops() const {
        return plan_.kind == Kind::all_reduce || plan_.kind == Kind::reduce_scatter ? plan_.size - 1 : 0;
    }
    Treatment treatment(std::uint32_t hop) const {
        if (hop + 1 < reducing_hops()) return Treatment::reduce;
        return hop + 1 == reducing_hops() ? Treatment::finish : Treatment::copy;
    }
    std::uint32_t chunk_sent(std::uint32_t hop) const { return sent_by(plan_.rank, hop); }
    std::uint32_t chunk_received(std::uint32_t hop) const {
        return sent_by((plan_.rank + plan_.size - 1) % plan_.size, hop);
    }

    std::uint32_t segments(std::uint32_t chunk) const {
        if (chunk == no_chunk) return 0;
        return static_cast<std::uint32_t>((chunk_elements(chunk) + per_segment_ - 1) / per_segment_);
    }
    std::uint32_t chunks() const { return chunks_; }

    // Of the segments of a chunk those of this strand: so many, and the index of each in the chunk.
    std::uint32_t share(std::uint32_t chunk) const {
        return (segments(chunk) + plan_.strands - 1 - plan_.strand) / plan_.strands;
    }
    std::uint32_t index_of(std::uint32_t place) const { return plan_.strand + place * plan_.strands; }
    bool ours(std::uint32_t index) const { return index % plan_.strands == plan_.strand; }
    std::uint32_t place_of(std::uint32_t index) const { return index / plan_.strands; }
    // Of all chunks.
    std::size_t all_shares() const {
        std::size_t sum = 0;
        for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) sum += share(chunk);
        return sum;
    }
    // What they hold of what this peer brings or ends with, at most.
    std::size_t share_bytes() const { return std::min(elements_, all_shares() * per_segment_) * item_; }

    Place locate(std::uint32_t chunk, std::uint32_t index) const {
        const std::size_t first = index * per_segment_;
        const std::size_t elements = std::min(per_segment_, chunk_elements(chunk) - first);
        const std::size_t at = (chunk_begin(chunk) + first) * item_;
        const std::size_t own = chunk_begin(plan_.rank % chunks_) * item_;
        // An all-gather's input is our chunk alone, and so is a reduce-scatter's output.
        return {at - (plan_.kind == Kind::all_gather ? own : 0), at - (plan_.kind == Kind::reduce_scatter ? own : 0),
                elements * item_, elements, wire_bytes(elements)};
    }
    // The longest that a segment gets on a lane.
    std::size_t segment_bytes() const { return wire_bytes(per_segment_); }

  private:
    std::uint32_t sent_by(std::uint32_t rank, std::uint32_t hop) const {
        const std::uint32_t size = plan_.size;
        switch (plan_.kind) {
            case Kind::broadcast:  // one chunk, that passes each peer once
                return (rank + size - plan_.root) % size == hop ? 0 : no_chunk;
            case Kind::reduce_scatter:  // one earlier than in an all-reduce, so that chunk r is finished at rank r
                return (rank + 2 * size - hop - 1) % size;
            default:
                return (rank + 2 * size - hop) % size;
        }
    }
    std::size_t wire_bytes(std::size_t elements) const {
        if (codec_ == nullptr) return elements * item_;
        return coded_bytes(*codec_, block_, plan_.type == DataType::f64, elements);
    }
    std::size_t chunk_elements(std::uint32_t chunk) const {
        return elements_ / chunks_ + (chunk < elements_ % chunks_ ? 1 : 0);
    }
    std::size_t chunk_begin(std::uint32_t chunk) const {
        return chunk * (elements_ / chunks_) + std::min<std::size_t>(chunk, elements_ % chunks_);
    }

    Plan plan_;
    std::size_t item_;
    std::uint64_t elements_;
    std::uint32_t chunks_;
    const CodecKernels* codec_;  // null for none
    std::size_t block_;          // elements
    std::size_t per_segment_;    // elements
};

}  // namespace pccl
