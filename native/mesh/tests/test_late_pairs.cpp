// Several devices that work by themselves, of one worker and of two: each does its part at the same time, in order.
#include "hand.h"
#include "late_client.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"

#include <algorithm>

using namespace mesh;

// In case of a hang the test ends with the others, by their time limit
static void wait_until(const std::function<bool()> & holds) {
    while (!holds()) {
        std::this_thread::yield();
    }
}

// Two late devices of one worker, given requests one by one
class two_devices {
public:
    two_devices() {
        hello_body hello;
        hello.version = VERSION;
        const std::string release = ggml_release();
        ask(hello, release.data(), release.size());
        for (uint32_t i = 0; i < 2; i++) {
            allocate_body memory;
            memory.buffer = i + 1;
            memory.device = i;
            memory.size = 4096;
            ask(memory);
        }
    }

    ~two_devices() {
        first.release();
        second.release();
    }

    template <class Body> void ask(const Body & body, const void * more = nullptr, size_t size = 0) {
        writer out;
        body.put(out);
        out.put_bytes(more, size);
        wire_header header;
        header.kind = static_cast<uint16_t>(Body::number);
        header.id = ++id;
        worker.handle(header, out.data);
    }

    // Writes this to a device, which copies it to the other one, which adds it to what is there
    void pass_on(float value) {
        write_body write;
        write.buffer = 1;
        ask(write, &value, sizeof value);
        copy_body copy;
        copy.from_buffer = 1;
        copy.to_buffer = 2;
        copy.size = sizeof value;
        ask(copy);
        small_graph sum;
        sum.body.device = 1;
        for (auto & row : sum.rows) {
            row.buffer = 2;
        }
        sum.rows[2].offset = 64; // on its second source
        const std::string bytes = sum.bytes();
        ask(sum.body, bytes.data(), bytes.size());
        read_body read;
        read.buffer = 2;
        read.offset = 64;
        read.size = sizeof value;
        ask(read);
    }

    ggml_backend_t backend(size_t number) const { return devices[number].backend; }

    late_device & first = *new late_device();
    late_device & second = *new late_device();
    std::vector<float> sums;

private:
    const std::vector<lent_device> devices = { { first.open(), 16 << 20, find_size_rule(&first.memory) },
        { second.open(), 16 << 20, find_size_rule(&second.memory) } };
    const local_weights files;
    neighbours others{ {} };
    uint64_t id = 0;

public:
    executor worker{ devices, files, others, [this](message number, uint64_t, blob body) {
                        if (number == message::data) {
                            sums.emplace_back();
                            std::memcpy(&sums.back(), body.data(), sizeof(float));
                        }
                    } };
};

static bool (*copy_at_first)(ggml_backend_t, ggml_backend_t, const ggml_tensor *, ggml_tensor *) = nullptr;
static uint64_t most_copied = 0;

static bool copy_counted(ggml_backend_t source, ggml_backend_t target, const ggml_tensor * from, ggml_tensor * to) {
    most_copied = std::max<uint64_t>(most_copied, ggml_nbytes(from));
    return copy_at_first(source, target, from, to);
}

// Where devices cannot copy to each other, ggml takes as much memory
TEST(much_is_copied_to_another_device_in_pieces) {
    constexpr uint64_t SIZE = 2 * uint64_t(PIECE_BYTES) + 100;
    two_devices them;
    copy_at_first = them.backend(1)->iface.cpy_tensor_async;
    them.backend(1)->iface.cpy_tensor_async = copy_counted;
    for (uint32_t i = 0; i < 2; i++) {
        allocate_body memory;
        memory.buffer = i + 3;
        memory.device = i;
        memory.size = SIZE + 64;
        them.ask(memory);
    }
    fill_body fill;
    fill.buffer = 3;
    fill.value = 7;
    fill.size = SIZE + 64;
    them.ask(fill);
    copy_body copy;
    copy.from_buffer = 3;
    copy.to_buffer = 4;
    copy.to_offset = 32;
    copy.size = SIZE;
    them.ask(copy);
    them.worker.settle();
    const std::vector<uint8_t> copied = them.second.last_buffer();
    CHECK(std::count(copied.begin(), copied.end(), 7) == SIZE && copied[31] != 7 && copied[32] == 7);
    CHECK(most_copied == PIECE_BYTES);
}

TEST(devices_of_one_worker_hand_over_in_order) {
    two_devices them;
    them.first.hold();
    them.second.hold();
    for (const float value : { 1.0f, 20.0f, 300.0f }) {
        them.pass_on(value); // over what the second one has not read yet
    }
    CHECK(them.first.computed() == 0 && them.second.waiting() == 3);
    them.second.release();
    them.first.release();
    them.worker.settle();
    CHECK(them.sums == std::vector<float>({ 1, 21, 321 }));
}

// A model of two layers, each on a worker of its own, under llama.cpp's scheduler as it runs several devices
class two_layers {
public:
    static constexpr int COPIES = 4; // of what the scheduler hands over

    two_layers() :
        backends{ open_late_client(first, 0, { { 1, between.ends[0] } }),
            open_late_client(second, 1, { { 0, between.ends[1] } }), ggml_backend_cpu_init() },
        scheduler(ggml_backend_sched_new(backends, nullptr, 3, GGML_DEFAULT_GRAPH_SIZE, true, false)) {
        CHECK(ggml_backend_sched_get_n_copies(scheduler.get()) == COPIES);
        for (int i = 0; i < 2; i++) { // weights decide where a layer is
            contexts.emplace_back(ggml_init({ ggml_tensor_overhead() * 2, nullptr, true }));
            weights.push_back(ggml_new_tensor_2d(contexts.back().get(), GGML_TYPE_F32, 4, 4));
            memory.emplace_back(ggml_backend_alloc_ctx_tensors(contexts.back().get(), backends[i]));
            ggml_backend_buffer_set_usage(memory.back().get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            const std::vector<float> ones(16, 1.0f);
            ggml_backend_tensor_set(weights.back(), ones.data(), 0, 64);
        }
    }

    // Asks for both layers of these values, and for the result
    void begin(float value, std::vector<float> & target) {
        contexts.emplace_back(ggml_init({ ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true }));
        ggml_context * ctx = contexts.back().get();
        ggml_tensor * input = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
        ggml_set_input(input);
        ggml_tensor * result = ggml_mul_mat(ctx, weights[1], ggml_mul_mat(ctx, weights[0], input));
        ggml_set_output(result);
        ggml_cgraph * graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, result);
        ggml_backend_sched_reset(scheduler.get());
        CHECK(ggml_backend_sched_alloc_graph(scheduler.get(), graph));
        CHECK(ggml_backend_sched_get_n_splits(scheduler.get()) == 2);
        const std::vector<float> values(4, value);
        ggml_backend_tensor_set(input, values.data(), 0, 16);
        CHECK(ggml_backend_sched_graph_compute_async(scheduler.get(), graph) == GGML_STATUS_SUCCESS);
        ggml_backend_t last = ggml_backend_sched_get_tensor_backend(scheduler.get(), result);
        ggml_backend_tensor_get_async(last, result, target.data(), 0, 16);
    }

    void end() { ggml_backend_sched_synchronize(scheduler.get()); }

    late_device & first = *new late_device();
    late_device & second = *new late_device();

private:
    const socket_pair between;
    ggml_backend_t backends[3];
    std::vector<ggml_context_ptr> contexts;
    std::vector<ggml_backend_buffer_ptr> memory;
    std::vector<ggml_tensor *> weights;
    ggml_backend_sched_ptr scheduler;
};

TEST(workers_compute_at_the_same_time) {
    two_layers model;
    model.first.hold();
    model.second.hold();
    std::vector<std::vector<float>> results(two_layers::COPIES, std::vector<float>(4));
    for (size_t step = 0; step < results.size(); step++) {
        model.begin(float(step), results[step]);
    }
    // the head has waited for neither, and the first one not for the second
    wait_until([&] { return model.first.waiting() == results.size(); });
    model.first.release();
    wait_until([&] { return model.first.computed() == results.size() && model.second.waiting() == results.size(); });
    CHECK(model.second.computed() == 0);
    model.second.release();
    model.end();
    for (size_t step = 0; step < results.size(); step++) {
        CHECK(results[step] == std::vector<float>(4, 16.0f * float(step)));
    }
}
