#include "host.h"

#include <dlfcn.h>

namespace mesh {

std::string host_ggml() {
    // our own copy, if we have one, is hidden: what is found here is in a library of the program
    void * found = dlsym(RTLD_DEFAULT, "ggml_version");
    return found == nullptr ? "" : reinterpret_cast<const char * (*) ()>(found)();
}

} // namespace mesh
