// A head whose messages are made by hand, and a graph that can be spoilt.
#pragma once

#include "check.h"
#include "names.h"
#include "plain_channel.h"
#include "release.h"
#include "served.h"

#include <unistd.h>

namespace mesh {

// A head by hand, greeted, with a buffer of 4096 bytes that is numbered 1.
class hand {
public:
    explicit hand(
        bool greets = true, const std::vector<neighbour_socket> & sockets = {},
        std::function<void(ggml_backend_t)> prepare = [](ggml_backend_t) {},
        std::chrono::milliseconds second = std::chrono::seconds(1), ggml_backend_t other = nullptr) :
        server(sockets, std::move(prepare), second, other), worker(server.own_end, sender::worker) {
        if (greets) {
            greet();
            allocate_body body;
            body.buffer = 1;
            body.size = 4096;
            worker.write_body(2, body);
            CHECK(take().first == message::allocated);
        }
    }

    void greet(const std::string & release = ggml_release()) {
        hello_body body;
        body.version = VERSION;
        worker.write_body(1, body, release.data(), release.size());
        CHECK(take().first == message::welcome);
    }

    // The next answer
    std::pair<message, blob> take() {
        auto said = take_any();
        while (said.first == message::progress) {
            said = take_any();
        }
        return said;
    }

    std::pair<message, blob> take_any() {
        wire_header header;
        if (!worker.read_header(header)) {
            throw std::runtime_error("it ended");
        }
        blob body = worker.read_body(header);
        return { static_cast<message>(header.kind), body };
    }

    // What the worker says to this, and that it has ended
    template <class Body> std::string refused(const Body & body, const std::string & more = "") {
        worker.write_body(9, body, more.data(), more.size());
        const auto said = take();
        CHECK(said.first == message::failed);
        const std::string why(said.second.begin(), said.second.end());
        CHECK(server.end() == why);
        return why;
    }

    served server;
    plain_channel worker;
};

// A graph of one ADD of two rows of four values, before it is spoilt
struct small_graph {
    small_graph() : rows(3) {
        for (uint32_t i = 0; i < 3; i++) {
            wire_tensor & row = rows[i];
            row.buffer = 1;
            row.offset = 64 * i;
            row.type = number_of_type(GGML_TYPE_F32);
            for (int j = 0; j < 4; j++) {
                row.ne[j] = j == 0 ? 4 : 1;
                row.nb[j] = j == 0 ? 4 : 16;
            }
        }
        rows[2].operation = number_of_operation(GGML_OP_ADD);
        rows[2].flags = 16; // to be computed
        rows[2].sources[0] = 1;
        rows[2].sources[1] = 2;
        body.node_count = 1;
        body.tensor_count = 3;
    }

    std::string bytes() const {
        writer out;
        for (const uint32_t node : nodes) {
            out.put(node);
        }
        for (const auto & row : rows) {
            row.put(out);
        }
        return std::string(out.data.begin(), out.data.end());
    }

    graph_body body;
    std::vector<uint32_t> nodes = { 2 };
    std::vector<wire_tensor> rows;
};

// Its fourth row is the attention of the three before, and all that is computed
inline void attend(small_graph & graph) {
    wire_tensor & result = graph.rows[3];
    result.operation = number_of_operation(GGML_OP_FLASH_ATTN_EXT);
    result.flags = 16;
    for (uint32_t i = 0; i < 3; i++) {
        result.sources[i] = i + 1;
    }
    graph.nodes = { 3 };
    graph.body.tensor_count = 4;
}

} // namespace mesh
