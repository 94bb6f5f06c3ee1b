#include "mesh_echo.h"

#include <stdexcept>
#include <utility>

using namespace mesh;

void echo::push(uint32_t number, uint64_t token, blob data) {
    if (number != 1 && number != 2) {
        throw bad_message("no such neighbour");
    }
    pieces[number - 1].push_back({ token, std::move(data) });
}

void echo::push_summand(uint32_t number, uint64_t token, const blob & data) {
    push(number, token, data);
}

// Another one's values for the sum, which are the worker's own
blob echo::take_summand(uint32_t number, uint64_t token) {
    if ((number != 1 && number != 2) || pieces[number - 1].empty() || pieces[number - 1].front().token != token) {
        throw bad_message("no such neighbour, or nothing from it");
    }
    blob data = std::move(pieces[number - 1].front().data);
    pieces[number - 1].pop_front();
    if (change) {
        std::exchange(change, {})(data);
    }
    return data;
}

blob echo::take(uint32_t number, uint64_t token, uint32_t size) {
    if ((number != 1 && number != 2) || pieces[number - 1].empty()) {
        throw bad_message("no such neighbour, or nothing from it");
    }
    piece first = std::move(pieces[number - 1].front());
    pieces[number - 1].pop_front();
    if (first.token != token || first.data.size() != size) {
        throw std::runtime_error("something else");
    }
    return std::move(first.data);
}
