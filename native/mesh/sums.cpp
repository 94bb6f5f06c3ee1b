#include "sums.h"

#include "finite.h"
#include "half_rows.h"
#include "trace.h"

#include "ggml-cpu.h"

#include <deque>

namespace mesh {

static constexpr uint64_t BLOCK_BYTES = 34; // of q8_0: a half float, and a byte for each value

// So many pieces are on their way to a neighbour that has sent none: fewer than are read ahead of each, so that no two
// workers ever wait for each other's room
static constexpr uint64_t WINDOW = 4;

sum_task task_of(const sum_body & body) {
    const bool is_member = body.place < NEIGHBOURS && (body.members >> body.place & 1) != 0;
    if (!is_member || body.members >> NEIGHBOURS != 0) {
        throw bad_message("SUM of workers that there are not");
    }
    if ((body.members & ~(1u << body.place)) == 0) {
        throw bad_message("SUM of one worker");
    }
    const uint64_t row_bytes = sizeof(float) * static_cast<uint64_t>(body.row);
    if (row_bytes == 0 || row_bytes > SUMMAND_BYTES || body.size % row_bytes != 0 || body.size > SUM_BYTES ||
        body.offset % sizeof(float) != 0) {
        throw bad_message("SUM of parts of rows or values, or of too much");
    }
    if (body.form > static_cast<uint32_t>(sum_form::q8) || body.absent > 1) {
        throw bad_message("SUM in a form that there is not");
    }
    const auto form = static_cast<sum_form>(body.form);
    if (form == sum_form::q8 && body.row % SUM_BLOCK != 0) {
        throw bad_message("SUM of parts of blocks");
    }
    return { body.members, body.place, body.token, body.size / sizeof(float), body.row, form };
}

static uint64_t bytes_of(uint64_t count, const sum_task & task) {
    switch (task.form) {
    case sum_form::half_rows:
        return bytes_on_wire(count * sizeof(float), task.row);
    case sum_form::q8:
        return count / SUM_BLOCK * BLOCK_BYTES;
    default:
        return count * sizeof(float);
    }
}

blob to_summand(const float * values, uint64_t count, const sum_task & task) {
    blob out(bytes_of(count, task));
    switch (task.form) {
    case sum_form::half_rows:
        to_half_rows(values, count * sizeof(float), task.row, out.data());
        break;
    case sum_form::q8:
        ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(values, out.data(), static_cast<int64_t>(count));
        break;
    default:
        std::memcpy(out.data(), values, out.size());
    }
    return out;
}

void from_summand(const blob & come, uint64_t count, const sum_task & task, float * values) {
    if (come.size() != bytes_of(count, task)) {
        throw bad_message("another number of values");
    }
    switch (task.form) {
    case sum_form::half_rows:
        if (!from_half_rows(come.data(), count * sizeof(float), task.row, values)) {
            throw bad_message("half floats with an exponent that there is not");
        }
        break;
    case sum_form::q8:
        ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(come.data(), values, static_cast<int64_t>(count));
        break;
    default:
        std::memcpy(values, come.data(), come.size());
    }
    if (!are_finite(values, count)) {
        throw bad_message("values that are not finite");
    }
}

namespace {

class summation {
public:
    summation(const sum_task & task, float * values, exchange & others, progress & doing) :
        task(task), values(values), others(others), doing(doing),
        piece(SUMMAND_BYTES / (sizeof(float) * task.row) * task.row), come(std::min(piece, task.count)) {}

    void run() {
        const uint64_t pieces = (task.count + piece - 1) / piece;
        uint64_t sent = 0;
        for (uint64_t added = 0; added < pieces; added++) {
            while (sent < pieces && sent < added + WINDOW) {
                send(sent++);
            }
            add(added);
            doing.steps++;
        }
    }

private:
    bool is_member(uint32_t place) const { return (task.members >> place & 1) != 0; }
    uint64_t length(uint64_t number) const { return std::min(piece, task.count - number * piece); }

    void send(uint64_t number) {
        const float * first = values + number * piece;
        if (!are_finite(first, length(number))) {
            throw std::runtime_error("its device computed values that are not finite");
        }
        blob made = to_summand(first, length(number), task);
        for (uint32_t place = 0; place < NEIGHBOURS; place++) {
            if (is_member(place) && place != task.place) {
                doing.pushes = place + 1;
                others.push_summand(place, task.token, made);
            }
        }
        doing.pushes = 0;
        own.push_back(std::move(made));
    }

    void add(uint64_t number) {
        float * target = values + number * piece;
        const uint64_t count = length(number);
        bool is_first = true;
        for (uint32_t place = 0; place < NEIGHBOURS; place++) {
            if (!is_member(place)) {
                continue;
            }
            take(place, count);
            if (is_first) {
                std::memcpy(target, come.data(), count * sizeof(float));
            } else {
                for (uint64_t i = 0; i < count; i++) {
                    target[i] += come[i];
                }
            }
            is_first = false;
        }
        own.pop_front();
    }

    void take(uint32_t place, uint64_t count) {
        if (place == task.place) {
            return from_summand(own.front(), count, task, come.data());
        }
        doing.waits = place + 1;
        traced waiting("wait", place);
        const blob data = others.take_summand(place, task.token);
        waiting.end();
        doing.waits = 0;
        try {
            from_summand(data, count, task, come.data());
        } catch (const bad_message & error) { // which is not the head's fault
            throw std::runtime_error("lost neighbour " + std::to_string(place) + ": it pushed " + error.what());
        }
    }

    const sum_task & task;
    float * const values;
    exchange & others;
    progress & doing;
    const uint64_t piece;    // values of each but the last one: whole rows
    std::deque<blob> own;    // pieces that were sent and not added, as the others have them
    std::vector<float> come; // of the member that is added
};

} // namespace

void add_up(const sum_task & task, float * values, exchange & others, progress & doing) {
    summation(task, values, others, doing).run();
}

} // namespace mesh
