#include "context_check.h"

namespace mesh {

void context_check::cleared(uint32_t before) {
    const bool never_began = now == state::prepared && before > 1; // its first token failed on the head
    if (now == state::going_on || never_began) {
        now = state::over;
    } else if (now == state::before && before > 0) {
        now = state::prepared;
    }
}

// A device whose results were wanted already computes for something else: should a llama-server ever clear its cache
// twice and then compute what somebody reads, no more than one computation is lost, that of the token which shows
// that the model is ready
bool context_check::skips_compute(bool wanted) {
    if (now == state::prepared) {
        now = state::going_on;
    } else if (now == state::before || wanted) {
        now = state::over;
    }
    return now == state::going_on;
}

bool context_check::skips_result(bool & wanted) const {
    if (now != state::going_on) {
        return false;
    }
    wanted = true;
    return true;
}

} // namespace mesh
