// Half rows: the values, what a worker makes of them, and which tensors a head has cross so.
#include "activations.h"
#include "client.h"
#include "half_rows.h"
#include "hand.h"
#include "late_client.h"

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-cpp.h"

#include <cmath>
#include <limits>

using namespace mesh;

static constexpr uint32_t ROW = 4;
static constexpr float INF = std::numeric_limits<float>::infinity();

static blob halves_of(const std::vector<float> & values, uint32_t row = ROW) {
    const uint64_t size = values.size() * sizeof(float);
    blob halves(bytes_on_wire(size, row));
    to_half_rows(values.data(), size, row, halves.data());
    return halves;
}

static std::vector<float> values_of(const blob & halves, uint32_t row = ROW) {
    std::vector<float> values(halves.size() / (2 * (row + 1)) * row);
    CHECK(from_half_rows(halves.data(), values.size() * sizeof(float), row, values.data()));
    return values;
}

static uint16_t word(const blob & halves, size_t number) {
    uint16_t found;
    std::memcpy(&found, halves.data() + number * sizeof found, sizeof found);
    return found;
}

static void expect_row(const std::vector<float> & values, uint16_t exponent, const std::vector<float> & back) {
    const blob halves = halves_of(values);
    CHECK(halves.size() == 2 * (ROW + 1));
    CHECK(word(halves, 0) == exponent);
    CHECK(values_of(halves) == back);
    CHECK(values_of(halves_of(back)) == back); // rounded once is rounded for good
}

TEST(half_rows_keep_what_is_finite) {
    expect_row({ 0, 1, -2.5f, 65504 }, 0, { 0, 1, -2.5f, 65504 });
    expect_row({ 65505, 1, 0, 0 }, 1, { 65504, 1, 0, 0 });
    expect_row({ 1 << 20, -(1 << 20), 16, 0 }, 5, { 1 << 20, -(1 << 20), 16, 0 });
    expect_row({ INF, -INF, 1, 70016 }, 1, { INF, -INF, 1, 70016 });
    const float most = std::numeric_limits<float>::max();
    const float largest = std::ldexp(65504.0f, HALF_EXPONENT);
    expect_row({ most, -most, 0, 0 }, HALF_EXPONENT, { largest, -largest, 0, 0 });
    expect_row({ 0.1f, 1e-9f, 0, 0 }, 0, { 0.0999755859375f, 0, 0, 0 });
    const auto odd = values_of(halves_of({ NAN, 1, 2, 3 }));
    CHECK(std::isnan(odd[0]) && odd[1] == 1 && odd[3] == 3);
}

TEST(half_rows_have_sizes_known_before) {
    CHECK(bytes_on_wire(100, 0) == 100 && bytes_in_buffer(100, 0) == 100);
    CHECK(bytes_on_wire(3 * 4 * 576, 576) == 3 * 2 * 577 && bytes_in_buffer(3 * 2 * 577, 576) == 3 * 4 * 576);
    constexpr uint32_t most = PIECE_BYTES / 4;
    CHECK(bytes_on_wire(0, most) == 0 && bytes_in_buffer(0, most) == 0);
    CHECK(!thrown_by([] { bytes_on_wire(0, most + 1); }).empty()); // nothing of it, but a row is held
    CHECK(!thrown_by([] { bytes_in_buffer(0, most + 1); }).empty());
    CHECK(!thrown_by([] { bytes_on_wire(16, 3); }).empty());
    CHECK(!thrown_by([] { bytes_on_wire(16, UINT32_MAX); }).empty());
    CHECK(!thrown_by([] { bytes_in_buffer(17, 7); }).empty());
    CHECK(!thrown_by([] { bytes_in_buffer(PIECE_BYTES, 7); }).empty()); // nearly twice a piece
}

static write_body write_to(uint64_t offset, uint32_t row) {
    write_body write;
    write.buffer = 1;
    write.offset = offset;
    write.row = row;
    return write;
}

static read_body read_from(uint64_t offset, uint32_t size, uint32_t row) {
    read_body read;
    read.buffer = 1;
    read.offset = offset;
    read.size = size;
    read.row = row;
    return read;
}

TEST(a_worker_takes_and_gives_half_rows) {
    hand head;
    const std::vector<float> values = { 1, 2, 3, 0.1f, 1e6f, 4, 5, 6 };
    const blob halves = halves_of(values);
    head.worker.write_body(3, write_to(64, ROW), halves.data(), halves.size());
    head.worker.write_body(4, read_from(64, 32, 0));
    const blob whole = head.take().second;
    std::vector<float> written(8);
    CHECK(whole.size() == 32);
    std::memcpy(written.data(), whole.data(), whole.size());
    CHECK(written == values_of(halves));
    head.worker.write_body(5, read_from(64, 32, ROW));
    CHECK(head.take().second == halves);
    head.worker.write_body(6, read_from(64, 0, ROW));
    CHECK(head.take().second.empty());
    head.worker.shut();
    CHECK(head.server.end() == "");
}

static std::string bad_exponent() {
    blob halves = halves_of({ 1, 2, 3, 4 });
    halves[0] = HALF_EXPONENT + 1;
    return std::string(halves.begin(), halves.end());
}

static bool has(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

TEST(half_rows_of_a_head_stay_within_its_buffers) {
    CHECK(has(hand().refused(write_to(4096 - 15, ROW), std::string(10, 0)), "behind the end"));
    CHECK(has(hand().refused(write_to(0, ROW), std::string(11, 0)), "no whole rows"));
    CHECK(has(hand().refused(write_to(0, ROW), bad_exponent()), "exponent"));
    CHECK(has(hand().refused(read_from(0, 18, ROW)), "a part of a row"));
    CHECK(has(hand().refused(read_from(4096 - 15, 16, ROW)), "behind the end"));
}

static push_body push_to(uint32_t neighbour, uint32_t row) {
    push_body push;
    push.neighbour = neighbour;
    push.buffer = 1;
    push.size = 16;
    push.row = row;
    push.token = 7;
    return push;
}

static take_body take_from(uint32_t neighbour, uint32_t row) {
    take_body take;
    take.neighbour = neighbour;
    take.buffer = 1;
    take.size = 16;
    take.row = row;
    take.token = 7;
    return take;
}

TEST(half_rows_go_from_worker_to_worker) {
    const socket_pair between;
    hand first(true, { { 1, between.ends[0] } });
    hand second(true, { { 0, between.ends[1] } });
    const float values[4] = { 1, 2, 0.1f, 1e6f };
    first.worker.write_body(3, write_to(0, 0), values, sizeof values);
    first.worker.write_body(4, push_to(1, ROW));
    second.worker.write_body(3, take_from(0, ROW));
    second.worker.write_body(4, read_from(0, 16, ROW));
    CHECK(second.take().second == halves_of({ 1, 2, 0.1f, 1e6f }));
    CHECK(has(first.refused(push_to(1, 3)), "a part of a row"));
    second.worker.shut();
    CHECK(second.server.end() == "");
}

// By a neighbour, and not by the head, which is told whose fault it is
TEST(half_rows_that_are_none_are_blamed_on_who_pushed_them) {
    const socket_pair between;
    hand head(true, { { 3, between.ends[0] } });
    plain_channel neighbour(between.ends[1], sender::head);
    pushed_body pushed;
    pushed.token = 7;
    const std::string bad = bad_exponent();
    neighbour.write_body(0, pushed, bad.data(), bad.size());
    CHECK(has(head.refused(take_from(3, ROW)), "lost neighbour 3: it pushed half floats"));
}

// A result of one part of a graph on a worker, which another part takes in on the head or on the same or another worker
class crossing {
public:
    explicit crossing(ggml_backend_t backend, int64_t row = 64, enum ggml_backend_buffer_usage usage = COMPUTED) {
        context.reset(ggml_init({ ggml_tensor_overhead() * 4, nullptr, true }));
        given = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, row, 3);
        state = ggml_sqr(context.get(), given);
        memory.reset(ggml_backend_alloc_ctx_tensors(context.get(), backend));
        ggml_backend_buffer_set_usage(memory.get(), usage);
    }

    static constexpr enum ggml_backend_buffer_usage COMPUTED = GGML_BACKEND_BUFFER_USAGE_COMPUTE;
    ggml_tensor * given;
    ggml_tensor * state;

private:
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
};

struct asked_for {
    explicit asked_for(const char * kind) { choose_activations(kind); }
    ~asked_for() { choose_activations(""); }
};

TEST(hidden_states_are_results_in_the_memory_of_a_graph) {
    ggml_backend_ptr cpu(ggml_backend_cpu_init());
    crossing plain(cpu.get());
    CHECK(row_of_activation(plain.state) == 0);
    for (const char * kind : { "f16", "f32", "" }) {
        const asked_for asked(kind);
        CHECK(row_of_activation(plain.state) == (kind == std::string("f16") ? 64 : 0));
    }
    CHECK(has(thrown_by([] { choose_activations("f8"); }), "neither f32 nor f16"));
    const asked_for asked("f16");
    CHECK(row_of_activation(plain.given) == 0); // what the user sets
    CHECK(row_of_activation(crossing(cpu.get(), 63).state) == 0);
    CHECK(row_of_activation(crossing(cpu.get(), 64, GGML_BACKEND_BUFFER_USAGE_WEIGHTS).state) == 0);
    CHECK(row_of_activation(crossing(cpu.get(), 64, GGML_BACKEND_BUFFER_USAGE_ANY).state) == 0); // a cache
    ggml_set_output(plain.state); // which llama.cpp says of its last hidden state
    CHECK(row_of_activation(plain.state) == 64);
    ggml_set_name(plain.given, "MESH0#result_output#0");
    CHECK(row_of_activation(plain.state) == 0); // what a sampler makes of logits
    crossing turned(cpu.get());
    std::swap(turned.state->nb[0], turned.state->nb[1]);
    CHECK(row_of_activation(turned.state) == 0);
    turned.state->type = GGML_TYPE_F16;
    CHECK(row_of_activation(turned.state) == 0);
}

static ggml_backend_t open_client() {
    static const weights_index none;
    static ggml_backend_reg no_registry = {};
    auto * server = new served();
    server->detach();
    const auto devices = open_workers({ { server->own_end } }, &no_registry, none, 0);
    return ggml_backend_dev_init(&devices[0]->device, nullptr);
}

static std::vector<float> get(const ggml_tensor * tensor) {
    std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
    ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
    return values;
}

TEST(a_head_writes_and_reads_hidden_states_as_half_rows) {
    ggml_backend_ptr cpu(ggml_backend_cpu_init());
    ggml_backend_t worker = open_client();
    const int64_t row = PIECE_BYTES / sizeof(float) / 2 - 7; // two rows are a piece, and nearly all of it
    crossing here(cpu.get(), row);
    crossing there(worker, row);
    std::vector<float> values(static_cast<size_t>(3 * row), 0.1f);
    values[0] = 1e6f;
    values.back() = 2;
    ggml_backend_tensor_set(here.state, values.data(), 0, ggml_nbytes(here.state));
    std::vector<float> rounded = values_of(halves_of(values, static_cast<uint32_t>(row)), static_cast<uint32_t>(row));
    CHECK(rounded != values && rounded.back() == 2);
    {
        const asked_for asked("f16");
        ggml_backend_tensor_copy_async(cpu.get(), worker, here.state, there.given);
    }
    CHECK(get(there.given) == rounded);
    ggml_backend_tensor_copy_async(cpu.get(), worker, here.state, there.given);
    CHECK(get(there.given) == values); // nobody asked for halves
    ggml_backend_tensor_set(there.state, values.data(), 0, ggml_nbytes(there.state));
    CHECK(get(there.state) == values);
    const asked_for asked("f16");
    CHECK(get(there.state) == rounded);
    std::vector<float> read(values.size());
    ggml_backend_tensor_get_async(worker, there.state, read.data(), 0, ggml_nbytes(there.state)); // by the user
    ggml_backend_synchronize(worker);
    CHECK(read == values);
    crossing elsewhere(open_client(), row); // no neighbour: through the head
    ggml_backend_tensor_copy(there.state, elsewhere.given);
    CHECK(get(elsewhere.given) == rounded);
}

// What is to be read stays until the device has read it, and what is asked back is converted when the device is done
TEST(half_rows_follow_a_device_that_works_later) {
    ggml_backend_ptr cpu(ggml_backend_cpu_init());
    auto & device = *new late_device();
    ggml_backend_t worker = open_late_client(device);
    crossing here(cpu.get());
    crossing there(worker);
    std::vector<float> values(64 * 3);
    for (size_t i = 0; i < values.size(); i++) {
        values[i] = 0.1f * static_cast<float>(i);
    }
    ggml_backend_tensor_set(here.state, values.data(), 0, ggml_nbytes(here.state));
    const std::vector<float> rounded = values_of(halves_of(values, 64), 64);
    const asked_for asked("f16");
    device.hold();
    for (ggml_tensor * target : { there.given, there.state }) {
        ggml_backend_tensor_copy_async(cpu.get(), worker, here.state, target);
    }
    device.release();
    CHECK(get(there.given) == rounded && get(there.state) == rounded);
    ggml_backend_free(worker);
}
