// Memory that runs need for a moment: slots for segments on their way, and room for what a run overwrites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pccl {

// A stretch of memory from the kernel, given back to a cache when it goes: its pages need not be cleared and mapped
// anew for the next run, which costs about as much as copying them.
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

// Equal slots, made on demand up to a number. Received segments wait in them for their turn to be sent on.
class Slots {
  public:
    Slots(std::size_t bytes_each, std::size_t most) : bytes_each_(bytes_each), most_(most) {}

    // A free slot, or -1.
    int take();
    void give(int slot) { free_.push_back(slot); }
    std::uint8_t* data(int slot) { return slots_[static_cast<std::size_t>(slot)].get(); }

  private:
    struct Release {
        void operator()(std::uint8_t* memory) const;
    };
    std::size_t bytes_each_;
    std::size_t most_;
    std::vector<std::unique_ptr<std::uint8_t[], Release>> slots_;
    std::vector<int> free_;
};

}  // namespace pccl
