// TLS 1.3 on one connection: records are made and read here, and their bytes moved to and from the descriptor.
//
// Non-blocking, and used by one thread at a time; which, may change. Never closes the descriptor, nor sends a word at
// the end: whoever owns it shuts it down, from any thread. Must not know what is inside the records, nor whom they are
// for.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "openssl.hpp"

namespace pccl {

enum class Moved { some, nothing_now, broken };

// Of an own CA, all in PEM.
struct CertificateFiles {
    std::string certificate, key, ca;
};

// What all connections of a peer have in common: its certificate, and when keys are replaced.
class TlsContext {
  public:
    // `rekey_bytes`: a sender's key is replaced after as many records as full ones hold so many bytes. Throws
    // `std::runtime_error`.
    TlsContext(const openssl::Library& library, std::string_view certificate, std::string_view key,
               std::uint64_t rekey_bytes);
    // The same with certificates of a CA: each end shows its own, and believes those of that CA alone.
    TlsContext(const openssl::Library& library, const CertificateFiles& files, std::uint64_t rekey_bytes);
    ~TlsContext();
    TlsContext(const TlsContext&) = delete;
    TlsContext& operator=(const TlsContext&) = delete;

    const openssl::Library& library() const { return library_; }
    openssl::Ctx* get() const { return context_; }
    std::uint64_t rekey_bytes() const { return rekey_bytes_; }
    bool verifies() const { return verifies_; }  // by a CA

  private:
    TlsContext(const openssl::Library& library, std::uint64_t rekey_bytes);
    void check(bool made) const;

    const openssl::Library& library_;
    openssl::Ctx* context_;
    std::uint64_t rekey_bytes_;
    bool verifies_ = false;
};

class Tls {
  public:
    // `first` goes out in the clear, together with the first records.
    Tls(std::shared_ptr<const TlsContext> context, int fd, bool dials, std::string_view first);
    ~Tls();
    Tls(const Tls&) = delete;
    Tls& operator=(const Tls&) = delete;

    enum class Shaken { done = 0, wants_read = 1, wants_write = 2, broken = -2 };
    // Of the end that dials: sends the first flight and reads nothing, for what comes first is not TLS.
    Shaken hello();
    Shaken handshake();
    // The other end's certificate in DER; empty if it has shown none.
    std::string certificate() const;

    // Like `Lane`. What `nothing_now` was said of must be sent again, with the same bytes first.
    Moved send(const iovec* parts, int count, std::size_t& bytes);
    Moved receive(void* to, std::size_t length, std::size_t& bytes);
    Moved peek();

    // Bytes that are here already: the descriptor may not tell of them.
    bool pending() const;
    // A record was made that the kernel has not taken whole: nothing else can be sent.
    bool torn() const { return sealed_ > 0; }
    std::uint64_t written() const { return written_; }  // bytes that the kernel has taken, as they go over the wire
    bool ended() const { return ended_; }               // the other end has closed
    const std::string& cause() const { return cause_; }
    std::uint64_t rekeyed() const { return rekeyed_; }

  private:
    friend struct TlsBio;
    bool seal(const iovec* parts, int count);
    bool write(const void* data, std::size_t length);
    Moved flush();
    Moved receive_with(int (*read)(openssl::Ssl*, void*, int), void* to, std::size_t length, std::size_t& bytes);
    Shaken shake();
    Moved fail(const char* what, int error);
    std::string because() const;

    std::shared_ptr<const TlsContext> context_;
    const openssl::Library& library_;
    openssl::Ssl* ssl_ = nullptr;
    int fd_;
    bool deaf_ = false;
    bool ended_ = false;             // the other end has closed
    int error_ = 0;                  // of the descriptor
    std::vector<std::uint8_t> out_;  // records for the kernel, ...
    std::size_t flushed_ = 0;        // ... and how much of them it has
    std::size_t batch_begin_ = 0;    // where the records of `sealed_` begin in them
    std::size_t sealed_ = 0;         // plain bytes in those records
    std::uint64_t since_rekey_ = 0;
    std::uint64_t rekeyed_ = 0;
    std::uint64_t written_ = 0;
    std::string cause_;
};

}  // namespace pccl
