// A head that breaks rules: the session ends, says which, and lives as long as it has to.
#include "hand.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

using namespace mesh;

static bool has(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

TEST(hello_comes_first_and_once) {
    CHECK(has(hand(false).refused(sync_body()), "HELLO comes first"));
    hello_body again;
    again.version = VERSION;
    CHECK(has(hand().refused(again, ggml_release()), "HELLO comes first"));
    hello_body old;
    old.version = VERSION + 1;
    CHECK(has(hand(false).refused(old, ggml_release()), "this worker has protocol"));
    hello_body other;
    other.version = VERSION;
    CHECK(has(hand(false).refused(other, "9.9.9"), "and ggml"));
}

TEST(a_request_has_an_id) {
    hand head;
    small_graph graph;
    const std::string bytes = graph.bytes();
    head.worker.write_body(0, graph.body, bytes.data(), bytes.size()); // as if nothing were asked
    const auto said = head.take();
    CHECK(said.first == message::failed);
    CHECK(head.server.end() == "a request has no id");
}

TEST(buffers_are_the_heads_own_and_have_ends) {
    allocate_body same;
    same.buffer = 1;
    same.size = 16;
    CHECK(has(hand().refused(same), "ALLOCATE names"));
    free_body none;
    none.buffer = 2;
    CHECK(has(hand().refused(none), "no buffer 2"));
    read_body behind;
    behind.buffer = 1;
    behind.offset = 4090;
    behind.size = 7;
    CHECK(has(hand().refused(behind), "behind the end"));
    read_body around;
    around.buffer = 1;
    around.offset = ~0ull;
    around.size = 1;
    CHECK(has(hand().refused(around), "behind the end"));
    fill_body fill;
    fill.buffer = 1;
    fill.value = 256;
    CHECK(has(hand().refused(fill), "more than a byte"));
    copy_body copy;
    copy.from_buffer = copy.to_buffer = 1;
    copy.to_offset = 8;
    copy.size = 16;
    CHECK(has(hand().refused(copy), "overlap"));
    write_body write;
    write.buffer = 1;
    write.offset = 4095;
    CHECK(has(hand().refused(write, "ab"), "behind the end"));
    read_body read;
    read.buffer = 1;
    read.zero = 1;
    CHECK(has(hand().refused(read), "reserved"));
    compute_body compute;
    compute.uid = 5;
    CHECK(has(hand().refused(compute), "not kept"));
}

TEST(memory_has_a_limit) {
    hand head;
    allocate_body body;
    body.buffer = 2;
    body.size = served::MEMORY;
    head.worker.write_body(3, body);
    const auto said = head.take();
    CHECK(said.first == message::allocated && said.second[0] == 0);
    body.size = served::MEMORY - 4096;
    head.worker.write_body(4, body);
    CHECK(head.take().second[0] == 1);
    head.worker.shut();
    CHECK(head.server.end() == "");
}

TEST(what_was_written_is_read_and_copied) {
    hand head;
    write_body write;
    write.buffer = 1;
    write.offset = 100;
    head.worker.write_body(3, write, "hello", 5);
    copy_body copy;
    copy.from_buffer = copy.to_buffer = 1;
    copy.from_offset = 100;
    copy.to_offset = 200;
    copy.size = 5;
    head.worker.write_body(4, copy);
    fill_body fill;
    fill.buffer = 1;
    fill.value = 'x';
    fill.offset = 201;
    fill.size = 2;
    head.worker.write_body(5, fill);
    read_body read;
    read.buffer = 1;
    read.offset = 199;
    read.size = 7;
    head.worker.write_body(6, read);
    const auto said = head.take();
    CHECK(said.second == blob({ 0, 'h', 'x', 'x', 'l', 'o', 0 }));
    head.worker.shut();
    CHECK(head.server.end() == "");
}

TEST(a_graph_is_computed_and_kept) {
    hand head;
    small_graph graph;
    graph.body.uid = 77;
    const float values[4] = { 1, 2, 3, 4 };
    write_body write;
    write.buffer = 1;
    head.worker.write_body(3, write, values, sizeof values);
    const std::string bytes = graph.bytes();
    head.worker.write_body(4, graph.body, bytes.data(), bytes.size());
    write.offset = 64;
    head.worker.write_body(5, write, values, sizeof values);
    compute_body again;
    again.uid = 77;
    head.worker.write_body(6, again);
    read_body read;
    read.buffer = 1;
    read.offset = 128;
    read.size = sizeof values;
    head.worker.write_body(7, read);
    float sums[4];
    std::memcpy(sums, head.take().second.data(), sizeof sums);
    CHECK(sums[0] == 2 && sums[3] == 8);
    free_body free;
    free.buffer = 1;
    head.worker.write_body(8, free); // and with it the graph that lies in it
    CHECK(has(head.refused(again), "not kept"));
}

TEST(the_last_graphs_are_kept_and_no_more) {
    const auto place_of = [](uint64_t uid) { return 128 + 64 * uid; };
    hand head;
    for (uint64_t uid = 1; uid <= STORED_GRAPHS + 1; uid++) { // each adds zeros, into a place of its own
        small_graph graph;
        graph.body.uid = uid;
        graph.rows[2].offset = place_of(uid);
        const std::string bytes = graph.bytes();
        head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    }
    const float values[4] = { 1, 2, 3, 4 };
    write_body write;
    write.buffer = 1;
    head.worker.write_body(4, write, values, sizeof values);
    for (uint64_t uid = 2; uid <= STORED_GRAPHS + 1; uid++) {
        compute_body again;
        again.uid = uid;
        head.worker.write_body(5, again);
        read_body read;
        read.buffer = 1;
        read.offset = place_of(uid);
        read.size = sizeof(float);
        head.worker.write_body(6, read);
        const auto said = head.take();
        float sum = 0;
        CHECK(said.first == message::data && said.second.size() == sizeof sum);
        std::memcpy(&sum, said.second.data(), sizeof sum);
        CHECK(sum == 1);
    }
    compute_body oldest;
    oldest.uid = 1;
    head.worker.write_body(7, oldest);
    thrown_by([&] { head.worker.write_body(8, sync_body()); }); // it may have ended
    CHECK(head.take().first == message::failed);
    CHECK(has(head.server.end(), "not kept"));
}

// Nodes that the device was given without the flag that they are computed, and with an operation
static int unflagged;
static ggml_status (*compute_on_cpu)(ggml_backend_t, ggml_cgraph *);

static ggml_status count_unflagged(ggml_backend_t backend, ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        unflagged += node->op != GGML_OP_NONE && (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0;
    }
    return compute_on_cpu(backend, graph);
}

TEST(a_device_is_shown_no_operation_that_it_is_not_to_compute) {
    unflagged = 0;
    hand head(true, {}, [](ggml_backend_t backend) {
        compute_on_cpu = backend->iface.graph_compute;
        backend->iface.graph_compute = count_unflagged;
    });
    small_graph graph;
    graph.rows[2].flags = 0; // a fusion might compute it with its neighbours, where no guard expects it
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    head.worker.write_body(4, sync_body());
    CHECK(head.take().first == message::synced);
    CHECK(unflagged == 0);
}

static int32_t least_uses;

static ggml_status note_uses(ggml_backend_t backend, ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        least_uses = std::min(least_uses, ggml_node_get_use_count(graph, i));
    }
    return compute_on_cpu(backend, graph);
}

TEST(a_device_sees_each_use_whatever_the_head_says) {
    least_uses = 100;
    hand head(true, {}, [](ggml_backend_t backend) {
        compute_on_cpu = backend->iface.graph_compute;
        backend->iface.graph_compute = note_uses;
    });
    small_graph graph; // twice the sum of its first two rows
    graph.rows.push_back(graph.rows[2]);
    graph.rows[3].offset = 192;
    graph.rows[3].sources[0] = graph.rows[3].sources[1] = 3;
    graph.rows[2].uses = 1;
    graph.rows[3].uses = 7; // by other devices
    graph.nodes.push_back(3);
    graph.body.node_count = 2;
    graph.body.tensor_count = 4;
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    head.worker.write_body(4, sync_body());
    CHECK(head.take().first == message::synced);
    CHECK(least_uses == 2);
}

TEST(graphs_that_would_lead_a_kernel_astray_are_refused) {
    const auto why = [](const std::function<void(small_graph &)> & spoil) {
        small_graph graph;
        spoil(graph);
        return hand().refused(graph.body, graph.bytes());
    };
    CHECK(has(why([](small_graph & g) { g.nodes[0] = 3; }), "no tensor of its graph"));
    CHECK(has(why([](small_graph & g) { g.body.node_count = 0; }), "a graph has"));
    CHECK(has(why([](small_graph & g) { g.body.tensor_count = 2; }), "longer than it says"));
    CHECK(has(why([](small_graph & g) { g.body.tensor_count = 4; }), "shorter than it says"));
    CHECK(has(why([](small_graph & g) { g.body.device = 1; }), "a device that there is not"));
    CHECK(has(why([](small_graph & g) { g.rows[0].sources[0] = 2; }), "one behind it"));
    CHECK(has(why([](small_graph & g) { g.rows[2].viewed = 3; }), "a view of itself"));
    CHECK(has(why([](small_graph & g) { g.rows[2].viewed = 1; }), "no view of what it names"));
    CHECK(has(why([](small_graph & g) { g.rows[2].sources[1] = 0; }), "ADD refused"));
    CHECK(has(why([](small_graph & g) { g.rows[2].sources[2] = 1; }), "ADD refused"));
    CHECK(has(why([](small_graph & g) { g.rows[2].operation = OPERATION_COUNT; }), "no operation"));
    CHECK(has(why([](small_graph & g) { g.rows[1].type = NO_NUMBER; }), "no type"));
    CHECK(has(why([](small_graph & g) { g.rows[1].ne[0] = 3; }), "ADD refused"));
    CHECK(has(why([](small_graph & g) { g.rows[1].buffer = 0; }), "no data on this device"));
    CHECK(has(why([](small_graph & g) { g.rows[1].buffer = 9; }), "no buffer 9"));
    CHECK(has(why([](small_graph & g) { g.rows[1].offset = 4084; }), "behind the end"));
    CHECK(has(why([](small_graph & g) { g.rows[1].offset = 66; }), "cannot be at its place"));
    CHECK(has(why([](small_graph & g) { g.rows[2].offset = 4; }), "ADD refused"));
    CHECK(has(why([](small_graph & g) { // rows at a distance that is taken only once, as its dimension says
        g.rows[2].operation = number_of_operation(GGML_OP_SCALE);
        g.rows[2].sources[1] = 0;
        for (const int i : { 0, 2 }) {
            g.rows[i].ne[2] = 2;
            g.rows[i].nb[3] = 32;
        }
        g.rows[0].nb[1] = 1 << 20;
    }),
        "SCALE refused"));
    CHECK(has(why([](small_graph & g) {
        g.body.node_count = 2;
        g.nodes.push_back(2);
    }),
        "there twice"));
}

TEST(pushes_stay_within_buffers_and_go_to_neighbours_only) {
    const socket_pair between;
    push_body push;
    push.buffer = 1;
    push.size = 4097;
    CHECK(has(hand(true, { { 0, between.ends[0] } }).refused(push), "behind the end"));
    push.size = PIECE_BYTES + 1;
    CHECK(has(hand().refused(push), "more than a piece"));
    push.size = 16;
    CHECK(has(hand().refused(push), "no neighbour 0"));
    take_body take;
    take.buffer = 1;
    take.offset = 4096;
    take.size = 1;
    CHECK(has(hand().refused(take), "behind the end"));
    take.size = 0;
    CHECK(has(hand().refused(take), "no neighbour 0"));
    take.size = PIECE_BYTES + 1; // which no neighbour can push: the head is to blame
    CHECK(has(hand().refused(take), "TAKE of more than a piece"));
}

TEST(a_head_that_goes_away_does_not_leave_a_worker_waiting_for_its_neighbour) {
    const socket_pair between;
    hand head(true, { { 3, between.ends[0] } });
    take_body take;
    take.neighbour = 3;
    take.buffer = 1;
    take.size = 8;
    head.worker.write_body(3, take);
    head.worker.shut();
    CHECK(head.server.end() == "");
    close(between.ends[1]);
}

TEST(a_head_that_ends_within_a_message_is_no_failure_of_the_worker) {
    hand head;
    wire_header header;
    header.kind = static_cast<uint16_t>(message::write);
    header.id = 3;
    header.size = 100;
    writer out;
    header.put(out);
    CHECK(send(head.server.own_end, out.data.data(), out.data.size(), 0) == wire_header::bytes);
    head.worker.shut();
    CHECK(head.server.end() == "");
}

TEST(a_length_costs_no_memory_before_its_bytes_come) {
    hand head;
    wire_header header;
    header.kind = static_cast<uint16_t>(message::write);
    header.size = ~0u;
    writer out;
    header.put(out);
    CHECK(send(head.server.own_end, out.data.data(), out.data.size(), 0) == wire_header::bytes);
    CHECK(has(head.server.end(), "cannot have 4294967295 bytes"));
}
