// What several workers are asked together.
#include "connection.h"
#include "half_rows.h"

namespace mesh {

bool connection::push_to(connection & other, const push_body & push, const take_body & take) {
    writer pushed;
    push.put(pushed);
    writer taken;
    take.put(taken);
    uint64_t push_id;
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (gone) {
            return false;
        }
        owed.add(message::push, last_id + 1, 0);
        push_id = put(message::push, pushed.data, nullptr, 0);
    }
    uint64_t take_id;
    {
        std::lock_guard<std::mutex> lock(other.mutex);
        if (other.gone) {
            return false;
        }
        other.owed.add_take(other.last_id + 1, bytes_on_wire(take.size, take.row), settled, push_id);
        take_id = other.put(message::take, taken.data, nullptr, 0);
    }
    std::lock_guard<std::mutex> lock(mutex);
    owed.add_taker(push_id, other.at, take_id);
    return true;
}

// Its id; 0: lost
uint64_t connection::put_sum(const sum_body & body) {
    writer out;
    body.put(out);
    std::lock_guard<std::mutex> lock(mutex);
    if (gone) {
        return 0;
    }
    owed.add_sum(last_id + 1, body.size);
    return put(message::sum, out.data, nullptr, 0, true); // nothing is read before the graph behind it
}

void connection::await_member(uint64_t id, const connection & member, uint64_t sum) {
    std::lock_guard<std::mutex> lock(mutex);
    owed.add_member(id, member.at, sum);
}

bool connection::add_up(const std::vector<sum_part> & parts) {
    std::vector<uint64_t> ids;
    for (const sum_part & part : parts) {
        ids.push_back(part.link->put_sum(part.body));
        if (ids.back() == 0) {
            return false;
        }
    }
    for (size_t i = 0; i < parts.size(); i++) {
        for (size_t j = 0; j < parts.size(); j++) {
            if (i != j) {
                parts[i].link->await_member(ids[i], *parts[j].link, ids[j]);
            }
        }
    }
    return true;
}

} // namespace mesh
