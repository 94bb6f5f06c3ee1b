#include "neighbours.h"

namespace mesh {

neighbours::neighbours(const std::vector<neighbour_socket> & sockets) {
    const size_t room = QUEUE_BYTES / std::max<size_t>(sockets.size(), 1);
    for (const auto & one : sockets) {
        all[one.number] = std::make_unique<neighbour>(one.socket, room);
    }
    for (auto & one : all) {
        neighbour & started = *one.second;
        started.reading = std::thread([&started] { started.read(); });
        started.writing = std::thread([&started] { started.write(); });
    }
}

neighbours::~neighbours() {
    end();
    for (auto & one : all) {
        one.second->reading.join();
        one.second->writing.join();
    }
}

void neighbours::end() {
    ended = true;
    for (auto & one : all) {
        one.second->coming.end();
        one.second->going.end();
        one.second->link.shut();
    }
}

void neighbours::neighbour::read() {
    try {
        wire_header header;
        while (link.read_header(header)) {
            piece one;
            uint8_t token[pushed_body::bytes];
            link.read_body(token, sizeof token);
            reader in(token, sizeof token);
            one.token = pushed_body::take(in).token;
            one.data.resize(header.size - sizeof token);
            link.read_body(one.data.data(), one.data.size());
            const size_t size = sizeof one + one.data.size();
            if (!coming.put(std::move(one), size)) {
                return;
            }
        }
    } catch (const std::exception & error) {
        why = error.what();
    }
    coming.end();
}

void neighbours::neighbour::write() {
    try {
        piece one;
        while (going.take(one)) {
            pushed_body body;
            body.token = one.token;
            link.write_body(0, body, one.data.data(), one.data.size());
        }
    } catch (const lost &) {
        link.shut(); // the reader finds the same
    }
    going.end();
}

neighbours::neighbour & neighbours::at(uint32_t number) const {
    const auto found = all.find(number);
    if (found == all.end()) {
        throw bad_message("there is no neighbour " + std::to_string(number));
    }
    return *found->second;
}

void neighbours::fail(uint32_t number, const std::string & why) const {
    if (ended) {
        throw interrupted();
    }
    throw std::runtime_error("lost neighbour " + std::to_string(number) + ": " + why);
}

uint64_t neighbours::received() const {
    uint64_t bytes = 0;
    for (const auto & one : all) {
        bytes += one.second->link.received();
    }
    return bytes;
}

std::vector<uint32_t> neighbours::numbers() const {
    std::vector<uint32_t> found;
    for (const auto & one : all) {
        found.push_back(one.first);
    }
    return found;
}

void neighbours::push(uint32_t number, uint64_t token, std::vector<uint8_t> data) {
    const size_t size = sizeof(piece) + data.size();
    if (!at(number).going.put({ token, std::move(data) }, size)) {
        fail(number, "it takes no more");
    }
}

std::vector<uint8_t> neighbours::take(uint32_t number, uint64_t token, uint32_t size) {
    neighbour & from = at(number);
    piece one;
    if (!from.coming.take(one)) {
        fail(number, from.why);
    }
    if (one.token != token || one.data.size() != size) {
        fail(number, "it pushed something else than the head says");
    }
    return std::move(one.data);
}

} // namespace mesh
