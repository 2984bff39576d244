#include "notifier.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace pccl {

Notifier::Notifier() {
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) throw std::runtime_error("no descriptor left");
    fd_ = std::shared_ptr<const int>(new int(fd), [](const int* owned) {
        ::close(*owned);
        delete owned;
    });
}

void Notifier::notify() const {
    const std::uint64_t one = 1;
    // Can only fail when it is full of notifications, and then it is readable.
    [[maybe_unused]] const ssize_t written = ::write(*fd_, &one, sizeof one);
}

void Notifier::clear() const {
    std::uint64_t count = 0;
    // Can only fail when there is nothing to clear.
    [[maybe_unused]] const ssize_t taken = ::read(*fd_, &count, sizeof count);
}

}  // namespace pccl
