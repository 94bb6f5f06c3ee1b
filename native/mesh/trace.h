// Who did what and when (tests/bench/trace.py reads it): a line for each thing done, in a file of this process. Off
// unless GGML_MESH_TRACE names a folder.
#pragma once

#include <cstdint>

namespace mesh {

// What begins when it is made, and ends with it. Costs nothing where it is off
class traced {
public:
    // `number`: of a device, or of a worker. `what` outlives it
    traced(const char * what, uint32_t number);
    ~traced() { end(); }
    traced(const traced &) = delete;
    traced & operator=(const traced &) = delete;

    // Earlier than the object
    void end();

    // Somebody else will say when it ends
    uint64_t leave();

private:
    const char * const what;
    const uint32_t number;
    uint64_t began; // 0: off, or ended
};

// Of something that began at `began`; 0: nothing is said
void trace_end(const char * what, uint32_t number, uint64_t began);

} // namespace mesh
