// The part of OpenSSL that lanes need, bound at run time to the library that the process has loaded already, or to that
// of the system: no headers, no linking, one OpenSSL in the process.
//
// The prototypes are our own, of what OpenSSL has kept since 1.1.1 as the interface of its shared library; constants
// are those of its macros. Knows nothing of lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pccl::openssl {

struct Method;
struct Ctx;
struct Ssl;
struct Bio;
struct BioMethod;
struct Key;
struct Param;
struct X509;

inline constexpr int error_want_read = 2;    // SSL_ERROR_WANT_READ
inline constexpr int error_zero_return = 6;  // SSL_ERROR_ZERO_RETURN
inline constexpr int ctrl_mode = 33;         // SSL_CTRL_MODE
inline constexpr int ctrl_read_ahead = 41;   // SSL_CTRL_SET_READ_AHEAD
inline constexpr int ctrl_cache_mode = 44;   // SSL_CTRL_SET_SESS_CACHE_MODE; 0 is off
inline constexpr int ctrl_min_proto = 123;   // SSL_CTRL_SET_MIN_PROTO_VERSION
inline constexpr int ctrl_max_proto = 124;   // SSL_CTRL_SET_MAX_PROTO_VERSION
inline constexpr int file_pem = 1;           // SSL_FILETYPE_PEM
inline constexpr int verify_both = 0x03;     // SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT
inline constexpr long tls_1_3 = 0x0304;
inline constexpr long mode_partial_write = 1;
inline constexpr long mode_moving_buffer = 2;
inline constexpr int key_update_not_requested = 0;
inline constexpr int bio_flag_read = 0x01;
inline constexpr int bio_flag_write = 0x02;
inline constexpr int bio_flag_retry = 0x08;
inline constexpr int bio_ctrl_flush = 11;
inline constexpr int bio_source_sink = 0x0400;
inline constexpr unsigned long crl_check = 0x4;  // X509_V_FLAG_CRL_CHECK

// Names as in OpenSSL, so that its manual pages apply.
struct Library {
    const Method* (*TLS_method)();
    Ctx* (*SSL_CTX_new)(const Method*);
    void (*SSL_CTX_free)(Ctx*);
    long (*SSL_CTX_ctrl)(Ctx*, int, long, void*);
    int (*SSL_CTX_set_ciphersuites)(Ctx*, const char*);
    int (*SSL_CTX_set_num_tickets)(Ctx*, std::size_t);
    void (*SSL_CTX_set_default_read_buffer_len)(Ctx*, std::size_t);
    int (*SSL_CTX_use_certificate_ASN1)(Ctx*, int, const unsigned char*);
    int (*SSL_CTX_use_PrivateKey)(Ctx*, Key*);
    int (*SSL_CTX_check_private_key)(const Ctx*);
    int (*SSL_CTX_use_certificate_chain_file)(Ctx*, const char*);
    int (*SSL_CTX_use_PrivateKey_file)(Ctx*, const char*, int);
    int (*SSL_CTX_load_verify_locations)(Ctx*, const char*, const char*);
    void (*SSL_CTX_set_verify)(Ctx*, int, int (*)(int, void*));
    Param* (*SSL_CTX_get0_param)(Ctx*);
    int (*X509_VERIFY_PARAM_set_flags)(Param*, unsigned long);
    long (*SSL_get_verify_result)(const Ssl*);
    const char* (*X509_verify_cert_error_string)(long);
    Key* (*d2i_AutoPrivateKey)(Key**, const unsigned char**, long);
    void (*EVP_PKEY_free)(Key*);
    Ssl* (*SSL_new)(Ctx*);
    void (*SSL_free)(Ssl*);
    void (*SSL_set_bio)(Ssl*, Bio*, Bio*);
    void (*SSL_set_connect_state)(Ssl*);
    void (*SSL_set_accept_state)(Ssl*);
    int (*SSL_do_handshake)(Ssl*);
    int (*SSL_read)(Ssl*, void*, int);
    int (*SSL_peek)(Ssl*, void*, int);
    int (*SSL_write)(Ssl*, const void*, int);
    int (*SSL_pending)(const Ssl*);
    int (*SSL_key_update)(Ssl*, int);
    int (*SSL_get_error)(const Ssl*, int);
    X509* (*SSL_get1_peer_certificate)(const Ssl*);  // SSL_get_peer_certificate before 3.0
    int (*i2d_X509)(const X509*, unsigned char**);
    void (*X509_free)(X509*);
    int (*BIO_get_new_index)();
    BioMethod* (*BIO_meth_new)(int, const char*);
    int (*BIO_meth_set_write)(BioMethod*, int (*)(Bio*, const char*, int));
    int (*BIO_meth_set_read)(BioMethod*, int (*)(Bio*, char*, int));
    int (*BIO_meth_set_ctrl)(BioMethod*, long (*)(Bio*, int, long, void*));
    Bio* (*BIO_new)(const BioMethod*);
    void (*BIO_set_data)(Bio*, void*);
    void* (*BIO_get_data)(Bio*);
    void (*BIO_set_init)(Bio*, int);
    void (*BIO_set_flags)(Bio*, int);
    void (*BIO_clear_flags)(Bio*, int);
    unsigned long (*ERR_get_error)();
    void (*ERR_clear_error)();
    const char* (*ERR_reason_error_string)(unsigned long);
    unsigned long (*OpenSSL_version_num)();
    const char* (*OpenSSL_version)(int);
};

// The library in the first of these files that has all of it. Once found it stays. Throws `std::runtime_error`, which
// says what was tried.
const Library& load(const std::vector<std::string>& files);

// What the last failure of this thread was, in OpenSSL's words; forgets it.
std::string last_error(const Library& library);

}  // namespace pccl::openssl
