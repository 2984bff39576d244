// One connection between neighbours. All reads and writes of a lane go through this class.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>

namespace pccl {

enum class Moved { some, nothing_now, broken };

class Lane {
  public:
    explicit Lane(int fd) : fd_(fd) {}

    int fd() const { return fd_; }
    const std::string& cause() const { return cause_; }

    // Hand over what the kernel takes at once; `bytes` is how much that was.
    Moved send(const iovec* parts, int count, std::size_t& bytes);
    // Take what has arrived, at most `length`.
    Moved receive(void* to, std::size_t length, std::size_t& bytes);

  private:
    Moved fail(const char* what, int error);

    int fd_;
    std::string cause_;
};

}  // namespace pccl
