// Memory that attempts need for a moment: slots for segments on their way, and room for what an attempt overwrites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pccl {

// A stretch of memory from the kernel, given back to a cache when it goes: its pages need not be cleared and mapped
// again for the next attempt, which costs about as much as copying them.
class Arena {
  public:
    explicit Arena(std::size_t bytes);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    std::uint8_t* data() { return data_; }

  private:
    std::uint8_t* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Equal slots, up to a number, in one stretch that is touched only as far as it is used. Received segments wait in them
// for their turn to be sent on.
class Slots {
  public:
    Slots(std::size_t bytes_each, std::size_t most) : bytes_each_((bytes_each + 63) / 64 * 64), most_(most) {}

    // A free slot, the one given back last if there is one, for it is in the cache; or -1.
    int take();
    void give(int slot) { free_.push_back(slot); }
    std::uint8_t* data(int slot) { return memory_->data() + static_cast<std::size_t>(slot) * bytes_each_; }

  private:
    std::size_t bytes_each_;  // whole cache lines
    std::size_t most_;
    std::size_t used_ = 0;
    std::unique_ptr<Arena> memory_;
    std::vector<int> free_;
};

}  // namespace pccl
