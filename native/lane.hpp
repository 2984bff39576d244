// One connection between neighbours, plain or under TLS. All reads and writes of a lane go through this class.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
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
    // What the last attempt has left in front of the next message: bytes to skip, or the first bytes of it.
    std::size_t skip = 0;
    std::string head{};
};

// How a lane does, as far as the kernel tells; all zero where it does not.
struct Flow {
    bool recovering = false;   // bytes were lost that are not made up for yet
    bool timed_out = false;    // and the kernel has waited for an acknowledgement in vain
    double bytes_per_s = 0;    // a window in each round trip, or less where the lane is held to a rate
    double round_trip_s = 0;   // as of late
    double unacked_bytes = 0;  // handed to the kernel, and not known to have arrived
    double pause_s = 0;  // between two acknowledgements, where the lane is held to a rate: they are for two packets

    // Until so many bytes more would have arrived, but for the way itself, which is equally long for all. What was lost
    // comes a round trip later than what was not.
    double seconds(double bytes) const { return (unacked_bytes + bytes) / rate() + (recovering ? round_trip_s : 0); }
    double rate() const { return bytes_per_s > 1 ? bytes_per_s : 1; }
};

class Lane {
  public:
    explicit Lane(Channel channel);

    int fd() const { return channel_.fd; }

    // It leads far: whoever made the connection has bounded what may wait in it unsent (TCP_NOTSENT_LOWAT), so that a
    // segment is given to it only when it can send it.
    bool far() const { return bound_ > 0; }
    // A segment that is begun now is normally taken whole. True of a near lane, which is asked by sending.
    bool ready() const;
    Flow flow() const;

    const std::string& cause() const { return channel_.tls ? channel_.tls->cause() : cause_; }

    // Hand over what the kernel takes at once; `bytes` is how much that was. Under TLS what was not taken must be sent
    // again with the same bytes first: a record of it may be made.
    Moved send(const iovec* parts, int count, std::size_t& bytes);
    // Take what has arrived, at most `length`; of what is to be skipped none, which may leave no byte.
    Moved receive(void* to, std::size_t length, std::size_t& bytes);
    // What is still in front of the next message.
    std::size_t to_skip() const { return channel_.skip; }
    const std::string& head() const { return channel_.head; }

    // Bytes as they are on the wire, since the connection was made or since the attempt began: those that the kernel
    // has taken, and of these those that have arrived. Where it does not tell, all have.
    std::int64_t taken() const;
    std::int64_t arrived() const { return taken() - unacked(); }

    // Bytes have arrived of which the descriptor does not tell.
    bool pending() const { return channel_.tls && channel_.tls->pending(); }
    // In the middle of what is being sent, though no byte of it was counted.
    bool torn() const { return channel_.tls && channel_.tls->torn(); }

  private:
    Moved fail(const char* what, int error);
    Moved receive_any(void* to, std::size_t length, std::size_t& bytes);
    std::int64_t unacked() const;

    Channel channel_;
    unsigned bound_;  // of what may wait in it unsent; 0 for none
    bool paced_;      // held to a rate, which may change meanwhile
    std::int64_t taken_ = 0;
    std::string cause_{};
};

}  // namespace pccl
