#include "memory.hpp"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace pccl {
namespace {

// Kept for the next attempt, all together. A model larger than this pays for fresh pages; a process that is done with
// collectives does not sit on more than this.
constexpr std::size_t cached_bytes_max = std::size_t{1} << 30;
constexpr std::size_t page = std::size_t{2} << 20;  // round up to huge pages: fewer faults, and more reuse

struct Cached {
    std::uint8_t* data;
    std::size_t bytes;
};

struct Cache {
    std::mutex mutex;
    std::vector<Cached> arenas;
    std::size_t bytes = 0;
};

// Never destroyed: an attempt may still give its memory back while the process exits.
Cache& cache() {
    static Cache* const one = new Cache;
    return *one;
}

std::uint8_t* from_cache(std::size_t& bytes) {
    Cache& kept = cache();
    const std::lock_guard lock(kept.mutex);
    std::vector<Cached>& arenas = kept.arenas;
    std::size_t best = arenas.size();
    for (std::size_t i = 0; i < arenas.size(); ++i) {
        if (arenas[i].bytes >= bytes && (best == arenas.size() || arenas[i].bytes < arenas[best].bytes)) best = i;
    }
    if (best == arenas.size() || arenas[best].bytes > 4 * bytes) return nullptr;
    const Cached found = arenas[best];
    arenas[best] = arenas.back();
    arenas.pop_back();
    kept.bytes -= found.bytes;
    bytes = found.bytes;
    return found.data;
}

}  // namespace

Arena::Arena(std::size_t bytes) : bytes_((bytes + page - 1) / page * page) {
    data_ = from_cache(bytes_);
    if (data_ != nullptr) return;
    void* fresh = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    ::madvise(fresh, bytes_, MADV_HUGEPAGE);  // advice: where it is not taken, nothing is lost
#endif
    data_ = static_cast<std::uint8_t*>(fresh);
}

Arena::~Arena() {
    {
        Cache& kept = cache();
        const std::lock_guard lock(kept.mutex);
        if (kept.bytes + bytes_ <= cached_bytes_max) {
            kept.arenas.push_back({data_, bytes_});
            kept.bytes += bytes_;
            return;
        }
    }
    ::munmap(data_, bytes_);
}

int Slots::take() {
    if (!free_.empty()) {
        const int slot = free_.back();
        free_.pop_back();
        return slot;
    }
    if (used_ == most_) return -1;
    if (!memory_) memory_ = std::make_unique<Arena>(most_ * bytes_each_);
    return static_cast<int>(used_++);
}

}  // namespace pccl
