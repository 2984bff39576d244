// The arithmetic of an exchange: all contributions are here, and every peer reduces them for itself.
//
// In a ring each chunk is finished in one place and copied, so all peers hold the same bits whatever their machines do.
// Here each peer computes the result, so it must follow from the contributions alone: they are combined in the order of
// ranks, operation by operation as IEEE 754 says, and every NaN becomes the same one, since which of two NaN an
// addition keeps is left to the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coding.hpp"
#include "kernels.hpp"

namespace pccl {

void reduce_all(DataType type, ReduceOp op, std::uint8_t* out, const std::vector<const std::uint8_t*>& contributions,
                std::size_t count);

// With a codec every contribution is coded once, by its owner, and decoded by all.
void encode_contribution(const Coding& coding, std::uint8_t* coded, const Stretch& own, std::uint64_t draw);
void reduce_all(const Coding& coding, DataType type, std::uint8_t* out,
                const std::vector<const std::uint8_t*>& contributions, std::size_t count);

}  // namespace pccl
