// Sums that the hostile head asks for, of values that may be none, with neighbours that may be as hostile.
#include "mesh_session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

using namespace mesh;

// Values for a sum, some of which may be none that is added; false then
bool mesh_session::set_values(const sum_body & body) {
    constexpr uint64_t MOST = 1000;
    fill_body zeros;
    zeros.buffer = body.buffer;
    zeros.offset = body.offset;
    zeros.size = body.size;
    give(zeros, "fill");
    std::vector<float> values(std::min<uint64_t>(body.size / sizeof(float), MOST));
    for (auto & value : values) {
        value = static_cast<float>(dice_.within(-1000, 1000)) / 64;
    }
    const bool odd_one = !values.empty() && hurt();
    if (odd_one) {
        values[dice_.below(values.size())] = dice_.one_in(2) ? NAN : -INFINITY;
    }
    write_body some;
    some.buffer = body.buffer;
    some.offset = body.offset;
    writer bytes;
    bytes.put_bytes(reinterpret_cast<const uint8_t *>(values.data()), values.size() * sizeof(float));
    give(some, "write", bytes.data);
    return !odd_one;
}

// With one neighbour or both; one of 20 in more pieces than are under way at once
void mesh_session::sum() {
    const bool is_long = dice_.one_in(20);
    const buffer where = is_long ? buffer{ ++last_buffer, 8 * SUMMAND_BYTES } : some_buffer();
    if (is_long) {
        allocate_body body;
        body.buffer = where.number;
        body.size = where.size;
        give(body, "allocate");
    }
    sum_body body;
    body.members = dice_.of<uint32_t>({ 3, 5, 7 });
    body.buffer = where.number;
    body.row = 32 * static_cast<uint32_t>(1 + dice_.below(20));
    body.form = static_cast<uint32_t>(dice_.below(3));
    body.absent = dice_.one_in(4) ? 1 : 0;
    body.size = sizeof(float) * body.row * (is_long ? where.size / (sizeof(float) * body.row) : dice_.below(6));
    body.offset = 4 * dice_.below((where.size - body.size) / 4 + 1);
    body.token = dice_.next();
    const bool addable = set_values(body) || body.absent != 0;
    valid = valid && addable;
    bool refusable = false; // only for something else than its values
    if (hurt()) {
        uint32_t * const fields[] = { &body.members, &body.place, &body.row, &body.form, &body.absent, &body.buffer };
        *fields[dice_.below(std::size(fields))] = static_cast<uint32_t>(odd());
        refusable = true;
    } else if (hurt()) {
        (dice_.one_in(2) ? body.offset : body.size) = odd();
        refusable = true;
    } else if (hurt()) { // a neighbour's fault
        others.change = [this](blob & come) { spoil(come); };
        refusable = true;
    }
    valid = valid && !refusable;
    give(body, "sum");
    others.change = {};
    if (!addable && !refusable && why.empty()) {
        valid = true; // told as what must not happen
        why = "values that are not finite were added";
    }
    if (is_long) {
        free_body end;
        end.buffer = where.number;
        give(end, "free");
    }
}

// What a hostile neighbour makes of its piece of a sum
void mesh_session::spoil(blob & come) {
    if (dice_.one_in(2) || come.size() < sizeof(float)) {
        return come.resize(dice_.below(2 * come.size() + 2));
    }
    const uint64_t value = odd();
    std::memcpy(come.data() + dice_.below(come.size() - sizeof(float) + 1), &value, sizeof(float));
}
