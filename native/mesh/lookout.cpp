#include "lookout.h"

#include "variable.h"

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

void lookout::allow() {
    longest = std::chrono::milliseconds(number_of_variable("GGML_MESH_LOOKOUT", "milliseconds", 100));
}

} // namespace mesh
