#include "lookout.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <sys/resource.h>

namespace mesh {

long times_displaced() {
#ifdef RUSAGE_THREAD
    rusage used = {};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nivcsw;
#else
    return 0;
#endif
}

static constexpr int MOST_MILLISECONDS = 100;

void lookout::allow() {
    const char * text = std::getenv("GGML_MESH_LOOKOUT");
    if (text == nullptr) {
        return;
    }
    char * end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > MOST_MILLISECONDS) {
        throw std::runtime_error("GGML_MESH_LOOKOUT is a number of milliseconds up to " +
                                 std::to_string(MOST_MILLISECONDS) + ", not `" + text + "`");
    }
    longest = std::chrono::milliseconds(value);
}

} // namespace mesh
