#include "memory.hpp"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace pccl {
namespace {

// Kept for the next run, all together. A model larger than this pays for fresh pages; a process that is done with
// collectives does not sit on more than this.
constexpr std::size_t cached_bytes_max = std::size_t{1} << 30;
constexpr std::size_t page = std::size_t{2} << 20;  // round up to huge pages: fewer faults, and more reuse

struct Cached {
    std::uint8_t* data;
    std::size_t bytes;
};

std::mutex cache_mutex;
std::vector<Cached> cache;
std::size_t cached_bytes = 0;

std::uint8_t* from_cache(std::size_t& bytes) {
    const std::lock_guard lock(cache_mutex);
    std::size_t best = cache.size();
    for (std::size_t i = 0; i < cache.size(); ++i) {
        if (cache[i].bytes >= bytes && (best == cache.size() || cache[i].bytes < cache[best].bytes)) best = i;
    }
    if (best == cache.size() || cache[best].bytes > 4 * bytes) return nullptr;
    const Cached found = cache[best];
    cache[best] = cache.back();
    cache.pop_back();
    cached_bytes -= found.bytes;
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
        const std::lock_guard lock(cache_mutex);
        if (cached_bytes + bytes_ <= cached_bytes_max) {
            cache.push_back({data_, bytes_});
            cached_bytes += bytes_;
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
    if (slots_.size() == most_) return -1;
    slots_.emplace_back(new (std::align_val_t{64}) std::uint8_t[bytes_each_]);
    return static_cast<int>(slots_.size()) - 1;
}

void Slots::Release::operator()(std::uint8_t* memory) const {
    ::operator delete[](memory, std::align_val_t{64});
}

}  // namespace pccl
