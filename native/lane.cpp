#include "lane.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace pccl {

Moved Lane::send(const iovec* parts, int count, std::size_t& bytes) {
    if (channel_.tls) return channel_.tls->send(parts, count, bytes);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
    for (;;) {
        const ssize_t sent = ::sendmsg(channel_.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes = static_cast<std::size_t>(sent);
            return Moved::some;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Moved::nothing_now;
        if (errno != EINTR) return fail("send", errno);
    }
}

Moved Lane::receive(void* to, std::size_t length, std::size_t& bytes) {
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
