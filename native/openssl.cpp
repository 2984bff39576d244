#include "openssl.hpp"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

namespace pccl::openssl {
namespace {

constexpr unsigned long oldest = 0x10101000;  // 1.1.1, the first with TLS 1.3

template <class Function>
void find(void* handle, const char* name, Function*& found, std::string& missing) {
    found = reinterpret_cast<Function*>(::dlsym(handle, name));
    if (found == nullptr && missing.empty()) missing = name;
}

// What is missing in it; empty if nothing is.
std::string bind(void* handle, Library& library) {
    std::string missing;
#define PCCL_FIND(name) find(handle, #name, library.name, missing)
    PCCL_FIND(TLS_method);
    PCCL_FIND(SSL_CTX_new);
    PCCL_FIND(SSL_CTX_free);
    PCCL_FIND(SSL_CTX_ctrl);
    PCCL_FIND(SSL_CTX_set_ciphersuites);
    PCCL_FIND(SSL_CTX_set_num_tickets);
    PCCL_FIND(SSL_CTX_set_default_read_buffer_len);
    PCCL_FIND(SSL_CTX_use_certificate_ASN1);
    PCCL_FIND(SSL_CTX_use_PrivateKey);
    PCCL_FIND(SSL_CTX_check_private_key);
    PCCL_FIND(SSL_CTX_use_certificate_chain_file);
    PCCL_FIND(SSL_CTX_use_PrivateKey_file);
    PCCL_FIND(SSL_CTX_load_verify_locations);
    PCCL_FIND(SSL_CTX_set_verify);
    PCCL_FIND(SSL_CTX_get0_param);
    PCCL_FIND(X509_VERIFY_PARAM_set_flags);
    PCCL_FIND(SSL_get_verify_result);
    PCCL_FIND(X509_verify_cert_error_string);
    PCCL_FIND(d2i_AutoPrivateKey);
    PCCL_FIND(EVP_PKEY_free);
    PCCL_FIND(SSL_new);
    PCCL_FIND(SSL_free);
    PCCL_FIND(SSL_set_bio);
    PCCL_FIND(SSL_set_connect_state);
    PCCL_FIND(SSL_set_accept_state);
    PCCL_FIND(SSL_do_handshake);
    PCCL_FIND(SSL_read);
    PCCL_FIND(SSL_peek);
    PCCL_FIND(SSL_write);
    PCCL_FIND(SSL_pending);
    PCCL_FIND(SSL_key_update);
    PCCL_FIND(SSL_get_error);
    PCCL_FIND(i2d_X509);
    PCCL_FIND(X509_free);
    PCCL_FIND(BIO_get_new_index);
    PCCL_FIND(BIO_meth_new);
    PCCL_FIND(BIO_meth_set_write);
    PCCL_FIND(BIO_meth_set_read);
    PCCL_FIND(BIO_meth_set_ctrl);
    PCCL_FIND(BIO_new);
    PCCL_FIND(BIO_set_data);
    PCCL_FIND(BIO_get_data);
    PCCL_FIND(BIO_set_init);
    PCCL_FIND(BIO_set_flags);
    PCCL_FIND(BIO_clear_flags);
    PCCL_FIND(ERR_get_error);
    PCCL_FIND(ERR_clear_error);
    PCCL_FIND(ERR_reason_error_string);
    PCCL_FIND(OpenSSL_version_num);
    PCCL_FIND(OpenSSL_version);
#undef PCCL_FIND
    std::string renamed;
    find(handle, "SSL_get1_peer_certificate", library.SSL_get1_peer_certificate, renamed);
    if (!renamed.empty()) find(handle, "SSL_get_peer_certificate", library.SSL_get1_peer_certificate, missing);
    return missing;
}

// Empty if this file serves; else why it does not.
std::string try_file(const std::string& file, Library& library) {
    // What the file itself needs is searched, too: that of Python's `_ssl` leads to the OpenSSL that Python uses.
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return "it cannot be loaded";
    const std::string missing = bind(handle, library);
    if (missing.empty() && library.OpenSSL_version_num() >= oldest) return {};
    std::string why = missing.empty() ? "it is older than OpenSSL 1.1.1" : "it has no " + missing;
    ::dlclose(handle);
    return why;
}

}  // namespace

const Library& load(const std::vector<std::string>& files) {
    static std::mutex mutex;
    static const Library* loaded = nullptr;  // never unloaded: lanes of any age may use it
    const std::lock_guard lock(mutex);
    if (loaded != nullptr) return *loaded;
    std::string tried;
    for (const std::string& file : files) {
        Library library{};
        const std::string why = try_file(file, library);
        if (why.empty()) {
            loaded = new Library(library);
            return *loaded;
        }
        tried += (tried.empty() ? "" : "; ") + file + ": " + why;
    }
    throw std::runtime_error(tried);
}

std::string last_error(const Library& library) {
    const char* const reason = library.ERR_reason_error_string(library.ERR_get_error());
    library.ERR_clear_error();
    return reason == nullptr ? "no reason given" : reason;
}

}  // namespace pccl::openssl
