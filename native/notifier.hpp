// A descriptor by which one thread is told something by another.
#pragma once

#include <memory>

namespace pccl {

// A descriptor that becomes readable: how attempts tell an event loop that they have ended, and how their threads are
// woken. Copies share the descriptor, and the last one closes it: never while another is in use, and never by way of
// Python, whose lock a native thread must not take.
class Notifier {
  public:
    Notifier();

    int fd() const { return *fd_; }
    void notify() const;
    void clear() const;

  private:
    std::shared_ptr<const int> fd_;
};

}  // namespace pccl
