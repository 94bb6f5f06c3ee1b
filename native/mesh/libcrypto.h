// ChaCha20-Poly1305 of OpenSSL's libcrypto, as it is installed on this machine. It is loaded when it is first asked
// for: so it is no part of this program, which runs without it and is built without its headers, and the system
// brings its updates (docs/decisions/0093-sealed-pushes.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace mesh {

struct evp_cipher_ctx; // EVP_CIPHER_CTX
struct evp_cipher;     // EVP_CIPHER

// The functions that sealing calls, with the types of openssl/evp.h and crypto.h in 1.1.1 and later. Those that return
// an int return 1 if they could
struct libcrypto {
    int (*init)(uint64_t options, const void * settings);
    evp_cipher_ctx * (*ctx_new)();
    void (*ctx_free)(evp_cipher_ctx * context); // which clears it
    int (*ctx_ctrl)(evp_cipher_ctx * context, int type, int number, void * data);
    const evp_cipher * (*chacha20_poly1305)();
    int (*cipher_init)(evp_cipher_ctx * context, const evp_cipher * kind, void * engine, const uint8_t * key,
        const uint8_t * nonce, int seals);
    int (*cipher_update)(evp_cipher_ctx * context, uint8_t * out, int * out_size, const uint8_t * in, int size);
    int (*cipher_final)(evp_cipher_ctx * context, uint8_t * out, int * out_size);

    static constexpr int GET_TAG = 0x10; // EVP_CTRL_AEAD_GET_TAG
    static constexpr int SET_TAG = 0x11; // EVP_CTRL_AEAD_SET_TAG
};

// Where it can be, the preferred one first
extern const std::vector<const char *> LIBCRYPTO_NAMES;

// The first of these libraries that is there and has all functions; nullptr: none
std::unique_ptr<const libcrypto> load_libcrypto(const std::vector<const char *> & names);

} // namespace mesh
