#include "tls.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace pccl {

using namespace openssl;

namespace {

constexpr std::size_t record_bytes = 16384;                        // the most that one may hold
constexpr std::size_t record_on_wire = record_bytes + 5 + 1 + 16;  // header, type, tag

// Sealed before the kernel is asked once for all of it: a call for each record costs a tenth more.
constexpr std::size_t batch_bytes = 4 * record_bytes;

// Read from the kernel at once; OpenSSL keeps this much for each connection.
constexpr std::size_t read_buffer_bytes = std::size_t{64} << 10;

// Records that wait though nothing is sent are answers to what the other end asks of TLS itself: never this much.
constexpr std::size_t unsent_max = std::size_t{1} << 20;

constexpr const char* ciphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

bool holds_crl(const std::string& file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        if (line.find("BEGIN X509 CRL") != std::string::npos) return true;
    }
    return false;
}

}  // namespace

// The door of OpenSSL to the descriptor. Not its own socket BIO: that one's `write` may end the process (SIGPIPE), and
// asks the kernel for each record.
struct TlsBio {
    static Tls& of(Bio* bio) {
        // The data is set before anything is called, and by us alone.
        return *static_cast<Tls*>(method_library->BIO_get_data(bio));
    }

    static int write(Bio* bio, const char* data, int length) {
        Tls& tls = of(bio);
        tls.library_.BIO_clear_flags(bio, bio_flag_read | bio_flag_write | bio_flag_retry);
        if (tls.out_.size() - tls.flushed_ > unsent_max) return -1;
        try {
            tls.out_.insert(tls.out_.end(), data, data + length);
        } catch (const std::bad_alloc&) {
            return -1;  // no exception may pass through C
        }
        return length;
    }

    static int read(Bio* bio, char* to, int length) {
        Tls& tls = of(bio);
        tls.library_.BIO_clear_flags(bio, bio_flag_read | bio_flag_write | bio_flag_retry);
        for (;;) {
            const ssize_t got = tls.deaf_ ? -1 : ::recv(tls.fd_, to, static_cast<std::size_t>(length), MSG_DONTWAIT);
            if (got > 0) return static_cast<int>(got);
            if (got == 0) {
                tls.ended_ = true;
                return 0;
            }
            if (tls.deaf_ || errno == EAGAIN || errno == EWOULDBLOCK) {
                tls.library_.BIO_set_flags(bio, bio_flag_read | bio_flag_retry);
                return -1;
            }
            if (errno != EINTR) {
                tls.error_ = errno;
                return -1;
            }
        }
    }

    static long ctrl(Bio*, int command, long, void*) { return command == bio_ctrl_flush ? 1 : 0; }

    static BioMethod* method(const Library& library) {
        static BioMethod* const one = [&] {
            method_library = &library;
            BioMethod* const made = library.BIO_meth_new(library.BIO_get_new_index() | bio_source_sink, "pccl lane");
            if (made == nullptr) throw std::runtime_error("OpenSSL has no memory left");
            library.BIO_meth_set_write(made, write);
            library.BIO_meth_set_read(made, read);
            library.BIO_meth_set_ctrl(made, ctrl);
            return made;
        }();
        return one;
    }

    static inline const Library* method_library = nullptr;  // there is one in the process
};

// ── the context ──────────────────────────────────────────────────────────────────────────────────────────────────────

TlsContext::TlsContext(const Library& library, std::uint64_t rekey_bytes)
    : library_(library), context_(library.SSL_CTX_new(library.TLS_method())), rekey_bytes_(rekey_bytes) {
    library.ERR_clear_error();
    if (context_ == nullptr) throw std::runtime_error(last_error(library));
}

// What is thrown in a constructor that another one has begun runs the destructor.
void TlsContext::check(bool made) const {
    if (!made) throw std::runtime_error(last_error(library_));
    const bool set = library_.SSL_CTX_check_private_key(context_) == 1 &&
                     library_.SSL_CTX_ctrl(context_, ctrl_min_proto, tls_1_3, nullptr) == 1 &&
                     library_.SSL_CTX_ctrl(context_, ctrl_max_proto, tls_1_3, nullptr) == 1 &&
                     library_.SSL_CTX_set_ciphersuites(context_, ciphers) == 1 &&
                     library_.SSL_CTX_set_num_tickets(context_, 0) == 1;
    if (!set) throw std::runtime_error(last_error(library_));
    library_.SSL_CTX_ctrl(context_, ctrl_cache_mode, 0, nullptr);
    library_.SSL_CTX_ctrl(context_, ctrl_mode, mode_partial_write | mode_moving_buffer, nullptr);
    library_.SSL_CTX_ctrl(context_, ctrl_read_ahead, 1, nullptr);
    library_.SSL_CTX_set_default_read_buffer_len(context_, read_buffer_bytes);
}

TlsContext::TlsContext(const Library& library, std::string_view certificate, std::string_view key,
                       std::uint64_t rekey_bytes)
    : TlsContext(library, rekey_bytes) {
    auto* next = reinterpret_cast<const unsigned char*>(key.data());
    Key* const decoded = library.d2i_AutoPrivateKey(nullptr, &next, static_cast<long>(key.size()));
    const bool made =
        decoded != nullptr &&
        library.SSL_CTX_use_certificate_ASN1(context_, static_cast<int>(certificate.size()),
                                             reinterpret_cast<const unsigned char*>(certificate.data())) == 1 &&
        library.SSL_CTX_use_PrivateKey(context_, decoded) == 1;
    library.EVP_PKEY_free(decoded);
    check(made);
}

TlsContext::TlsContext(const Library& library, const CertificateFiles& files, std::uint64_t rekey_bytes)
    : TlsContext(library, rekey_bytes) {
    check(library.SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) == 1 &&
          library.SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), file_pem) == 1 &&
          library.SSL_CTX_load_verify_locations(context_, files.ca.c_str(), nullptr) == 1);
    library.SSL_CTX_set_verify(context_, verify_both, nullptr);
    // As on control connections: a list of revoked certificates behind that of the CA counts, and none is asked for.
    if (holds_crl(files.ca)) {
        check(library.X509_VERIFY_PARAM_set_flags(library.SSL_CTX_get0_param(context_), crl_check) == 1);
    }
    verifies_ = true;
}

TlsContext::~TlsContext() {
    library_.SSL_CTX_free(context_);
}

// ── the handshake ────────────────────────────────────────────────────────────────────────────────────────────────────

Tls::Tls(std::shared_ptr<const TlsContext> context, int fd, bool dials, std::string_view first)
    : context_(std::move(context)), library_(context_->library()), fd_(fd), out_(first.begin(), first.end()) {
    const BioMethod* const method = TlsBio::method(library_);
    ssl_ = library_.SSL_new(context_->get());
    Bio* const bio = library_.BIO_new(method);
    if (ssl_ == nullptr || bio == nullptr) {
        library_.SSL_free(ssl_);
        throw std::runtime_error("OpenSSL has no memory left");
    }
    library_.BIO_set_data(bio, this);
    library_.BIO_set_init(bio, 1);
    library_.SSL_set_bio(ssl_, bio, bio);
    dials ? library_.SSL_set_connect_state(ssl_) : library_.SSL_set_accept_state(ssl_);
}

Tls::~Tls() {
    library_.SSL_free(ssl_);
}

Tls::Shaken Tls::hello() {
    deaf_ = true;
    const Shaken shaken = shake();
    deaf_ = false;
    return shaken;
}

Tls::Shaken Tls::handshake() {
    return shake();
}

Tls::Shaken Tls::shake() {
    if (!cause_.empty()) return Shaken::broken;
    library_.ERR_clear_error();
    const int result = library_.SSL_do_handshake(ssl_);
    const bool waits = result != 1 && library_.SSL_get_error(ssl_, result) == error_want_read;
    const std::string why = result == 1 || waits ? "" : because();
    const Moved left = flush();  // an alert, too
    if (!why.empty()) {
        if (cause_.empty()) cause_ = why;
        return Shaken::broken;
    }
    if (left == Moved::broken) return Shaken::broken;
    if (left == Moved::nothing_now) return Shaken::wants_write;
    return waits ? Shaken::wants_read : Shaken::done;
}

std::string Tls::certificate() const {
    X509* const shown = library_.SSL_get1_peer_certificate(ssl_);
    if (shown == nullptr) return {};
    std::string der(static_cast<std::size_t>(std::max(0, library_.i2d_X509(shown, nullptr))), '\0');
    auto* to = reinterpret_cast<unsigned char*>(der.data());
    if (!der.empty()) library_.i2d_X509(shown, &to);
    library_.X509_free(shown);
    return der;
}

// ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Moved Tls::send(const iovec* parts, int count, std::size_t& bytes) {
    if (!cause_.empty()) return Moved::broken;
    if (sealed_ == 0 && !seal(parts, count)) return Moved::broken;
    const Moved left = flush();
    if (left == Moved::broken) return left;
    if (left == Moved::some) {
        bytes = std::exchange(sealed_, 0);
        return Moved::some;
    }
    // Whole records that the kernel has count as sent: on a slow way a batch takes long. One less than there may be,
    // since what is not of this batch may be in between.
    const std::size_t records = flushed_ > batch_begin_ ? (flushed_ - batch_begin_) / record_on_wire : 0;
    if (records < 2) return Moved::nothing_now;
    bytes = (records - 1) * record_bytes;
    batch_begin_ += (records - 1) * record_on_wire;
    sealed_ -= bytes;
    return Moved::some;
}

// Make records of what is to be sent: a header goes into one with the payload behind it.
bool Tls::seal(const iovec* parts, int count) {
    if (since_rekey_ >= context_->rekey_bytes()) {
        if (library_.SSL_key_update(ssl_, key_update_not_requested) != 1) {
            fail("new keys", 0);
            return false;
        }
        since_rekey_ = 0;
        ++rekeyed_;
    }
    batch_begin_ = out_.size();
    std::uint8_t together[record_bytes];
    std::size_t gathered = 0;
    for (int i = 0; i < count && sealed_ < batch_bytes; ++i) {
        auto* data = static_cast<const std::uint8_t*>(parts[i].iov_base);
        std::size_t length = parts[i].iov_len;
        if (gathered > 0 || (i + 1 < count && length < record_bytes)) {
            const std::size_t portion = std::min(length, record_bytes - gathered);
            std::memcpy(together + gathered, data, portion);
            gathered += portion;
            if (gathered < record_bytes && i + 1 < count) continue;
            if (!write(together, gathered)) return false;
            gathered = 0;
            data += portion;
            length -= portion;
        }
        while (length > 0 && sealed_ < batch_bytes) {
            const std::size_t portion = std::min(length, record_bytes);
            if (!write(data, portion)) return false;
            data += portion;
            length -= portion;
        }
        if (length > 0) break;
    }
    return true;
}

bool Tls::write(const void* data, std::size_t length) {
    library_.ERR_clear_error();
    const int written = library_.SSL_write(ssl_, data, static_cast<int>(length));
    if (written != static_cast<int>(length)) {
        cause_ = because();
        return false;
    }
    sealed_ += length;
    since_rekey_ += record_bytes;  // a key is good for so many records, however short
    return true;
}

// Hand records to the kernel: `some` if it has all of them now.
Moved Tls::flush() {
    while (flushed_ < out_.size()) {
        const ssize_t sent = ::send(fd_, out_.data() + flushed_, out_.size() - flushed_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            flushed_ += static_cast<std::size_t>(sent);
            written_ += static_cast<std::uint64_t>(sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return Moved::nothing_now;
        } else if (errno != EINTR) {
            return fail("send", errno);
        }
    }
    out_.clear();  // keeps its memory for the next batch
    flushed_ = batch_begin_ = 0;
    return Moved::some;
}

// ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────────

Moved Tls::receive(void* to, std::size_t length, std::size_t& bytes) {
    std::size_t total = 0;
    Moved moved = Moved::some;
    while (total < length && moved == Moved::some) {
        std::size_t portion = 0;  // a record at a time
        moved = receive_with(library_.SSL_read, static_cast<std::uint8_t*>(to) + total, length - total, portion);
        total += portion;
    }
    bytes = total;
    return total > 0 ? Moved::some : moved;  // what broke after that is told next time
}

Moved Tls::peek() {
    std::uint8_t byte = 0;
    std::size_t bytes = 0;
    return receive_with(library_.SSL_peek, &byte, 1, bytes);
}

Moved Tls::receive_with(int (*read)(Ssl*, void*, int), void* to, std::size_t length, std::size_t& bytes) {
    if (!cause_.empty()) return Moved::broken;
    library_.ERR_clear_error();
    // No record is longer, and a length of any size must fit an int.
    const int result = read(ssl_, to, static_cast<int>(std::min(length, record_bytes)));
    if (result > 0) {
        bytes = static_cast<std::size_t>(result);
        return Moved::some;
    }
    const int error = library_.SSL_get_error(ssl_, result);
    if (error == error_want_read) return Moved::nothing_now;
    if (error == error_zero_return) ended_ = true;
    cause_ = because();
    return Moved::broken;
}

bool Tls::pending() const {
    return library_.SSL_pending(ssl_) > 0;
}

Moved Tls::fail(const char* what, int error) {
    if (cause_.empty()) cause_ = what + (error != 0 ? std::string(": ") + std::strerror(error) : "");
    return Moved::broken;
}

std::string Tls::because() const {
    const std::string words = last_error(library_);
    if (error_ != 0) return std::string("receive: ") + std::strerror(error_);
    if (const long refused = library_.SSL_get_verify_result(ssl_); refused != 0 && context_->verifies()) {
        return std::string("its certificate is refused: ") + library_.X509_verify_cert_error_string(refused);
    }
    return ended_ ? "the neighbour closed the lane" : "TLS: " + words;
}

}  // namespace pccl
