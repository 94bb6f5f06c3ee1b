#include "libcrypto.h"

#include <dlfcn.h>

namespace mesh {

static constexpr uint64_t NO_SETTINGS = 0x80; // OPENSSL_INIT_NO_LOAD_CONFIG: this machine's settings have no say

#ifdef __APPLE__
// Whole paths: a name alone is looked for in the folder in which the program was started, too. The system's own
// libcrypto is not for other programs, and ends them.
const std::vector<const char *> LIBCRYPTO_NAMES = {
    "/opt/homebrew/opt/openssl@3/lib/libcrypto.3.dylib", // Homebrew
    "/usr/local/opt/openssl@3/lib/libcrypto.3.dylib",    // Homebrew for Intel
    "/opt/local/lib/libcrypto.3.dylib",                  // MacPorts
};
#else
const std::vector<const char *> LIBCRYPTO_NAMES = { "libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1" };
#endif

template <typename F> static bool find(void * library, const char * name, F *& function) {
    function = reinterpret_cast<F *>(dlsym(library, name));
    return function != nullptr;
}

static bool find_all(void * library, libcrypto & found) {
    return find(library, "OPENSSL_init_crypto", found.init) && find(library, "EVP_CIPHER_CTX_new", found.ctx_new) &&
           find(library, "EVP_CIPHER_CTX_free", found.ctx_free) &&
           find(library, "EVP_CIPHER_CTX_ctrl", found.ctx_ctrl) &&
           find(library, "EVP_chacha20_poly1305", found.chacha20_poly1305) &&
           find(library, "EVP_CipherInit_ex", found.cipher_init) &&
           find(library, "EVP_CipherUpdate", found.cipher_update) &&
           find(library, "EVP_CipherFinal_ex", found.cipher_final);
}

std::unique_ptr<const libcrypto> load_libcrypto(const std::vector<const char *> & names) {
    for (const char * name : names) {
        void * library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        libcrypto found{};
        if (library != nullptr && find_all(library, found) && found.init(NO_SETTINGS, nullptr) == 1) {
            return std::make_unique<const libcrypto>(found); // it stays loaded: it has work at the end of the process
        }
        if (library != nullptr) {
            dlclose(library);
        }
    }
    return nullptr;
}

} // namespace mesh
