#include "lane.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#ifdef __linux__
#include <linux/sockios.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace pccl {
namespace {

// Of what may wait unsent in a connection; 0 for none.
unsigned bound_of([[maybe_unused]] int fd) {
    unsigned bytes = 0;
#ifdef TCP_NOTSENT_LOWAT
    socklen_t length = sizeof bytes;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &length) != 0) bytes = 0;
#endif
    return bytes;
}

// Bytes per second to which a connection is held by whoever made it; 0 for none.
double pace_of([[maybe_unused]] int fd) {
#ifdef SO_MAX_PACING_RATE
    std::uint64_t rate = 0;
    socklen_t length = sizeof rate;
    if (::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length) != 0) return 0;
    const std::uint64_t none = length < sizeof rate ? ~std::uint32_t{0} : ~std::uint64_t{0};
    return rate >= none ? 0 : static_cast<double>(rate);
#else
    return 0;
#endif
}

}  // namespace

Lane::Lane(Channel channel)
    : channel_(std::move(channel)), bound_(bound_of(channel_.fd)), paced_(pace_of(channel_.fd) > 0) {}

// Less than half of the bound waits. `poll` says so, too, but of a connection whose buffer has a third to spare: on a
// long and fat link all of it is in flight, and a third less is a third slower. It is asked for errors.
bool Lane::ready() const {
    if (!far()) return true;
#ifdef SIOCOUTQNSD
    int unsent = 0;
    if (::ioctl(channel_.fd, SIOCOUTQNSD, &unsent) == 0 && 2 * static_cast<std::int64_t>(unsent) < bound_) return true;
#endif
    pollfd watched{channel_.fd, POLLOUT, 0};
    return ::poll(&watched, 1, 0) > 0;
}

Flow Lane::flow() const {
    Flow flow;
#ifdef __linux__
    tcp_info facts{};
    socklen_t length = sizeof facts;
    if (::getsockopt(channel_.fd, IPPROTO_TCP, TCP_INFO, &facts, &length) != 0) return flow;
    flow.timed_out = facts.tcpi_ca_state == TCP_CA_Loss;
    flow.recovering = flow.timed_out || facts.tcpi_ca_state == TCP_CA_Recovery;
    flow.round_trip_s = std::max(facts.tcpi_rtt, 1u) * 1e-6;
    flow.bytes_per_s = static_cast<double>(facts.tcpi_snd_cwnd) * facts.tcpi_snd_mss / flow.round_trip_s;
    flow.unacked_bytes = static_cast<double>(unacked());
    if (const double pace = paced_ ? pace_of(channel_.fd) : 0; pace > 0) {
        flow.bytes_per_s = std::min(flow.bytes_per_s, pace);
        flow.pause_s = 2.0 * facts.tcpi_snd_mss / pace;
    }
#endif
    return flow;
}

std::int64_t Lane::taken() const {
    return channel_.tls ? static_cast<std::int64_t>(channel_.tls->written()) : taken_;
}

std::int64_t Lane::unacked() const {
    int bytes = 0;
#ifdef __linux__
    if (::ioctl(channel_.fd, TIOCOUTQ, &bytes) != 0) return 0;
#endif
    return bytes;
}

Moved Lane::send(const iovec* parts, int count, std::size_t& bytes) {
    if (channel_.tls) return channel_.tls->send(parts, count, bytes);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
    for (;;) {
        const ssize_t sent = ::sendmsg(channel_.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes = static_cast<std::size_t>(sent);
            taken_ += sent;
            return Moved::some;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::nothing_now;
        if (errno != EINTR) return fail("send", errno);
    }
}

Moved Lane::receive(void* to, std::size_t length, std::size_t& bytes) {
    if (!channel_.head.empty()) {
        bytes = channel_.head.copy(static_cast<char*>(to), length);
        channel_.head.erase(0, bytes);
        return Moved::some;
    }
    std::uint8_t skipped[16384];
    while (channel_.skip > 0) {
        std::size_t portion = 0;
        const Moved moved = receive_any(skipped, std::min(channel_.skip, sizeof skipped), portion);
        if (moved != Moved::some) return moved;
        channel_.skip -= portion;
    }
    return receive_any(to, length, bytes);
}

Moved Lane::receive_any(void* to, std::size_t length, std::size_t& bytes) {
    if (channel_.tls) return channel_.tls->receive(to, length, bytes);
    for (;;) {
        const ssize_t received = ::recv(channel_.fd, to, length, MSG_DONTWAIT);
        if (received > 0) {
            bytes = static_cast<std::size_t>(received);
            return Moved::some;
        }
        if (received == 0) return fail("the neighbour closed the lane", 0);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::nothing_now;
        if (errno != EINTR) return fail("receive", errno);
    }
}

Moved Lane::fail(const char* what, int error) {
    cause_ = what;
    if (error != 0) cause_ += std::string(": ") + std::strerror(error);
    return Moved::broken;
}

}  // namespace pccl
