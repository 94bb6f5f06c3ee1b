// What a worker says of itself in WELCOME and FAILED, and one that does not read while others are to go on.
#include "printable.h"
#include "watched.h"
#include "welcoming.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"

#include <future>

using namespace mesh;

static std::string refused(const welcome_words & says, uint32_t count = 0) {
    told parent;
    welcoming_worker worker(says);
    const std::string why = thrown_by([&] { worker.open(5, count); });
    const std::string reported = parent.all();
    CHECK(reported == "lost 5 its WELCOME is wrong: " + why + "\n");
    return why;
}

TEST(a_welcome_that_cannot_be_is_refused_and_reported) {
    welcome_words unknown;
    unknown.operations = { 0, OPERATION_COUNT };
    CHECK(refused(unknown) ==
          "a list has " + std::to_string(OPERATION_COUNT) + ", of " + std::to_string(OPERATION_COUNT));
    welcome_words none;
    none.types = { ~0u }; // as the head calls a type that the protocol does not have
    CHECK(refused(none).find("a list has 4294967295, of ") == 0);
    welcome_words empty;
    empty.devices = 0;
    CHECK(refused(empty) == "it has another version, or no devices, or more than there can be");
    welcome_words two;
    two.devices = 2;
    CHECK(refused(two, 1) == "it has 2 devices, not 1");
    welcome_words odd;
    odd.device.alignment = 48;
    CHECK(refused(odd) == "a device has an alignment that there is not");
}

static std::string refused_neighbours(const std::vector<uint32_t> & numbers) {
    told parent;
    welcome_words says;
    says.neighbours = numbers;
    welcoming_worker worker(says);
    client_worker & asked = *worker.open(5)[0]->worker;
    ask_neighbours(asked);
    CHECK(!take_neighbours(asked));
    return parent.all();
}

TEST(neighbours_that_cannot_be_are_refused_and_reported) {
    CHECK(refused_neighbours({ 16 }) == "lost 5 its MET is wrong: a list has 16, of 16\n");
    CHECK(refused_neighbours({ 3, 3 }) == "lost 5 its MET is wrong: a list has 3, of 16\n");
}

// llama.cpp would ask for more memory than was planned for
TEST(a_welcome_that_exaggerates_what_tensors_take_is_refused) {
    welcome_words apart;
    apart.device.alignment = 2 * ALIGNMENT_BYTES;
    CHECK(refused(apart) == "a device has an alignment that there is not");
    welcome_words padded;
    padded.device.row_padding = 2 * ROW_PADDING;
    CHECK(refused(padded) == "a device has a rule for sizes that there is not");
}

static void drop(std::vector<uint32_t> & numbers, uint32_t one) {
    numbers.erase(std::remove(numbers.begin(), numbers.end(), one), numbers.end());
}

TEST(a_worker_that_lacks_what_its_release_has_is_refused_and_reported) {
    welcome_words operation;
    drop(operation.operations, number_of_operation(GGML_OP_SET_ROWS)); // llama.cpp aborts where a cache lies then
    CHECK(refused(operation) == "it lacks SET_ROWS, which its release of ggml has");
    welcome_words type;
    drop(type.types, number_of_type(GGML_TYPE_F16));
    CHECK(refused(type) == "it lacks f16, which its release of ggml has");
}

// What the parent is told of a worker that says `allocates` to the second of two buffers of 600 bytes, where it lends
// so many
static std::string told_of_memory(uint64_t lends, uint32_t allocates) {
    told parent;
    welcome_words says;
    says.device.free_bytes = 1 << 20;
    welcoming_worker worker(says, allocates);
    client_device & device = *worker.open(7)[0];
    device.lent_bytes = lends;
    device.held_bytes = 600;
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(&device.buffer_type, 600);
    CHECK((buffer != nullptr) == (allocates == 1 || lends >= 1200)); // a promise is believed at first
    CHECK(device.held_bytes == (buffer != nullptr ? 1200u : 600u));
    while (buffer != nullptr && allocates != 1 && device.worker->link.wait_for_room()) {
        std::this_thread::yield(); // until it is lost
    }
    if (buffer != nullptr) {
        ggml_backend_buffer_free(buffer);
        CHECK(device.held_bytes == 600);
    }
    report("end"); // a parent that was told nothing would wait
    const std::string text = parent.all();
    return text.substr(0, text.size() - 4);
}

TEST(a_worker_that_refuses_memory_that_it_lends_is_lost) {
    const std::string why = "lost 7 it has no memory for a buffer of 600 bytes, and lends ";
    CHECK(told_of_memory(1200, 0) == why + "600\n");
    CHECK(told_of_memory(1300, 2) == why + "700\n");
    CHECK(told_of_memory(1200, 1).empty());
}

TEST(a_worker_that_is_asked_for_more_than_it_lends_is_not_blamed) {
    CHECK(told_of_memory(1199, 0) == "exceeded 7 0 1200 1199\n");
}

TEST(a_worker_whose_buffers_are_too_small_for_a_tensor_is_lost) {
    told parent;
    welcome_words says;
    says.device.most_bytes = 1000;
    welcoming_worker worker(says);
    client_device & device = *worker.open(8)[0];
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 2, nullptr, true }));
    ggml_tensor * fits = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 250);
    CHECK(ggml_backend_buft_get_alloc_size(&device.buffer_type, fits) == 1000);
    CHECK(device.worker->link.wait_for_room());
    ggml_tensor * large = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 251);
    ggml_backend_buft_get_alloc_size(&device.buffer_type, large);
    CHECK(parent.all() == "lost 8 a buffer of it has 1000 bytes at most, and a tensor needs 1004\n");
}

TEST(names_of_a_worker_are_shown_as_text) {
    welcome_words says;
    set_name(says.device.name, "CPU\x1b[2J");
    set_name(says.device.description, "a\nb \xc2\x9b \xff\x7f");
    welcoming_worker worker(says);
    CHECK(worker.open(6)[0]->description == "CPU\\x1b[2J: a\\x0ab \\xc2\\x9b \\xff\\x7f");
}

// What this process says on stderr meanwhile
static std::string said_by(const std::function<void()> & function) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    function();
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    char text[4096];
    const ssize_t n = read(ends[0], text, sizeof text);
    close(ends[0]);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
}

TEST(why_a_worker_fails_is_shown_as_text) {
    told parent;
    const std::string said = said_by([] {
        watch all;
        watched_worker worker(all, 0);
        const std::string why = "\x1b]0;owned\x07\r\nlost 1 it ended\n\xe2\x80\xae";
        worker.end.write(message::failed, 3, blob(why.begin(), why.end()));
        worker.await_loss();
    });
    const std::string shown = "it says: \\x1b]0;owned\\x07\\x0d\\x0alost 1 it ended\\x0a\\xe2\\x80\\xae\n";
    CHECK(said.find("mesh: lost MESH0: " + shown) != std::string::npos && said.find('\x1b') == std::string::npos);
    CHECK(parent.all() == "lost 0 " + shown);
}

// A tensor of so many bytes on this worker
struct remote_tensor {
    remote_tensor(client_device & device, int64_t size) :
        context(ggml_init({ ggml_tensor_overhead(), nullptr, true })),
        tensor(ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, size)),
        memory(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), &device.buffer_type)) {}
    ggml_context_ptr context;
    ggml_tensor * tensor;
    ggml_backend_buffer_ptr memory;
};

TEST(a_worker_that_does_not_read_keeps_no_other_one_waiting) {
    welcome_words says;
    says.neighbours = { 7, 8, 9 };
    welcoming_worker workers[3] = { welcoming_worker(says), welcoming_worker(says), welcoming_worker(says) };
    std::vector<client_device *> devices;
    std::vector<std::unique_ptr<remote_tensor>> tensors;
    for (uint32_t i = 0; i < 3; i++) {
        devices.push_back(workers[i].open(7 + i)[0]);
        ask_neighbours(*devices.back()->worker);
        CHECK(take_neighbours(*devices.back()->worker));
        tensors.push_back(std::make_unique<remote_tensor>(*devices.back(), 1 << 20));
    }
    ggml_backend_buffer_clear(tensors[0]->memory.get(), 0); // the first one reads no more
    const blob much(1 << 20);
    std::atomic<uint64_t> written{ 0 };
    std::thread writing([&] {
        for (; devices[0]->worker->link.wait_for_room(); written++) { // until it is lost
            write_tensor(tensors[0]->tensor, much.data(), 0, much.size());
        }
    });
    while (written < 8) {
        std::this_thread::yield();
    }
    std::atomic<bool> tried{ false };
    std::thread pushing([&] {
        do {
            tried = true;
        } while (copy_tensor(tensors[0]->tensor, tensors[1]->tensor));
    });
    auto others = std::async(std::launch::async, [&] {
        while (!tried) {
            std::this_thread::yield();
        }
        for (int i = 0; i < 1000; i++) {
            CHECK(copy_tensor(tensors[1]->tensor, tensors[2]->tensor));
            std::this_thread::yield();
        }
    });
    const bool went_on = others.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    for (auto * device : devices) {
        device->worker->link.lose("the test is over");
    }
    writing.join();
    pushing.join();
    CHECK(went_on);
    others.get();
}
