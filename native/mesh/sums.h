// Sums over several workers (SUM): each sends its values to all others, and adds what all have in the order of their
// places. What is rounded on the wire is rounded before a worker adds its own as well: so all have the same bits.
#pragma once

#include "neighbours.h"
#include "progress.h"
#include "sum_form.h"

namespace mesh {

// What one worker has to add up
struct sum_task {
    uint32_t members; // a bit for each place
    uint32_t place;   // of this worker
    uint64_t token;
    uint64_t count; // of values: whole rows
    uint32_t row;   // values of one
    sum_form form;
};

// Throws bad_message for what no head may ask
sum_task task_of(const sum_body & body);

// `count` values, whole rows, as they cross; and what has come so, in `values`. Throw bad_message for what cannot
blob to_summand(const float * values, uint64_t count, const sum_task & task);
void from_summand(const blob & come, uint64_t count, const sum_task & task, float * values);

// Sets values to the sums, piece by piece. Throws bad_message for a neighbour that there is not, std::runtime_error
// with its number for one that is lost or sends what cannot be added, and one without for values of this worker's own
void add_up(const sum_task & task, float * values, exchange & others, progress & doing);

} // namespace mesh
