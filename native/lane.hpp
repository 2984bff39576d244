// One connection between neighbours, plain or under TLS. All reads and writes of a lane go through this class.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "tls.hpp"

namespace pccl {

// What a lane is made of. Copies share the state of TLS, and the last one frees it: never by way of Python, whose lock
// a native thread must not take. The descriptor belongs to the caller.
struct Channel {
    int fd;
    std::shared_ptr<Tls> tls{};  // none: bytes go as they are
};

class Lane {
  public:
    explicit Lane(Channel channel) : channel_(std::move(channel)) {}

    int fd() const { return channel_.fd; }
    const std::string& cause() const { return channel_.tls ? channel_.tls->cause() : cause_; }

    // Hand over what the kernel takes at once; `bytes` is how much that was. Under TLS what was not taken must be sent
    // again with the same bytes first: a record of it may be made.
    Moved send(const iovec* parts, int count, std::size_t& bytes);
    // Take what has arrived, at most `length`.
    Moved receive(void* to, std::size_t length, std::size_t& bytes);

    // Bytes have arrived of which the descriptor does not tell.
    bool pending() const { return channel_.tls && channel_.tls->pending(); }
    // In the middle of what is being sent, though no byte of it was counted.
    bool torn() const { return channel_.tls && channel_.tls->torn(); }

  private:
    Moved fail(const char* what, int error);

    Channel channel_;
    std::string cause_{};
};

}  // namespace pccl
