// Ranges of elements as codes, block by block: what a hop of a coded all-reduce does. A block is widened, reduced,
// coded and decoded while it is in the first-level cache.
//
// Sums are computed in float, and in double for doubles; in between hops they exist as codes only. A peer that codes a
// sum may keep what coding has *lost*, and add it next time to what it brings (*carried*): in an all-reduce every peer
// codes every element exactly once, so nothing is lost twice or unseen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace pccl {

// Of the numbers that sums are computed in, one for each element of the tensor; null for none.
struct Feedback {
    const std::uint8_t* carried = nullptr;
    std::uint8_t* lost = nullptr;
};

// Elements that this peer brings.
struct Stretch {
    const std::uint8_t* values;
    std::size_t first;  // its place in the tensor
    std::size_t count;
};

class Coding {
  public:
    Coding(const CodecChoice& choice, DataType type, ReduceOp op, const Feedback& feedback);

    std::size_t bytes(std::size_t elements) const { return coded_bytes(codec_, choice_.block, wide_, elements); }

    // Of `stream` only random rounding takes notice: it must differ from hop to hop.
    void encode(std::uint8_t* coded, const Stretch& own, std::uint64_t stream) const;
    // What came, reduced with what we bring, in the same place.
    void fold(std::uint8_t* coded, const Stretch& own, std::uint64_t stream) const;
    // The same for the last time: divided among so many peers for AVG.
    void finish(std::uint8_t* coded, const Stretch& own, std::uint64_t stream, std::size_t peers) const;
    void decode(std::uint8_t* output, const std::uint8_t* coded, std::size_t count) const;
    // Contributions of all peers, by rank, each as `encode` made it.
    void reduce_all(std::uint8_t* output, const std::uint8_t* const* contributions, std::size_t peers,
                    std::size_t count) const;

    // Where random numbers begin: a function of what all peers know, and of what tells codings apart.
    std::uint64_t stream(std::uint64_t tag, std::uint64_t attempt, std::uint64_t hop) const;

  private:
    struct Treatment {
        bool fold = false;
        std::size_t peers = 1;  // to divide by
    };
    template <class Real>
    void code(std::uint8_t* coded, const Stretch& own, std::uint64_t stream, const Treatment& treatment) const;
    void code_either(std::uint8_t* coded, const Stretch& own, std::uint64_t stream, const Treatment& treatment) const;
    template <class Real>
    const Real* widened(Real* room, const std::uint8_t* values, std::size_t count) const;
    template <class Real>
    Real* room_in(Real* room, std::uint8_t* output) const;
    template <class Real>
    void store(std::uint8_t* output, const Real* values, std::size_t count) const;
    template <class Real>
    void decode_all(std::uint8_t* output, const std::uint8_t* const* contributions, std::size_t peers,
                    std::size_t count) const;

    CodecChoice choice_;
    DataType type_;
    ReduceOp op_;
    Feedback feedback_;
    const Kernels& kernels_;
    const CodecKernels& codec_;
    bool wide_;  // computed in double
    std::size_t item_;
};

}  // namespace pccl
