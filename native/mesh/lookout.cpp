#include "lookout.h"

#include "variable.h"

#include <stdexcept>

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

void choose_waiting() {
    static const char name[] = "GGML_MESH_WAITING";
    const std::string word = variable(name);
    if (word.empty() || word == "sleep") {
        way_of_waiting = waiting::sleep;
    } else if (word == "timed") {
        way_of_waiting = waiting::timed;
    } else if (word == "poll") {
        way_of_waiting = waiting::poll;
    } else {
        throw std::runtime_error(std::string(name) + " is `timed`, `poll` or `sleep`, not `" + word + "`");
    }
}

} // namespace mesh
