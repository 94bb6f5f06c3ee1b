// How long a device takes for the layers of a model, so that a planner can choose devices before anything is loaded.
#pragma once

#include "ggml-backend.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace mesh {

// What one layer computes, operation by operation. `layers` of them, each with weights of its own: they are in no cache
// that the whole model would not be in
struct timed_layers {
    int64_t layers;
    std::vector<std::string> words;
};

// "30=mul_mat:q4_1:576:1536,rms_norm:576": a number of layers, and their words. Those of a trial, but `mul_mat` and
// `mul_mat_id` have the number of rows behind their length, and `flash_attn` the cells of the cache at its end.
// Throws std::invalid_argument where that makes no sense
timed_layers parse_timed(const std::string & text);

struct timing_limits {
    double work = 1e9; // multiplications and additions of a run with several tokens
    std::chrono::nanoseconds run = std::chrono::seconds(2); // what would take longer is not tried
};

// For each of `kinds` and some numbers of tokens a line "took KIND TOKENS NANOSECONDS", for one layer; at the end
// "timed KINDS". A kind for which there is no memory, that would take too long, or that the device does not compute,
// has none. Returns the exit code: 0, or 2 if something failed. `threads`: with which a CPU computes
int time_device(ggml_backend_t backend, int threads, const std::vector<timed_layers> & kinds,
    const std::function<void(const std::string &)> & tell, const timing_limits & limits = {});

} // namespace mesh
