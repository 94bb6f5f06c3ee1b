// Sums over several workers: the same bits everywhere, and whose fault it is where there are none.
#include "check.h"
#include "client_sums.h"
#include "cpu_client.h"
#include "hand.h"
#include "late_client.h"
#include "owed_answers.h"
#include "sums.h"

#include <cmath>
#include <limits>

using namespace mesh;

static bool has(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

static std::vector<float> some_values(size_t count, uint32_t seed) {
    std::vector<float> values(count);
    for (float & value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int32_t>(seed)) * 1e-7f;
    }
    return values;
}

// Workers 0, 1 and 2, each with a connection to each other one
struct three_workers {
    three_workers() :
        first({ { 1, pairs[0].ends[0] }, { 2, pairs[1].ends[0] } }),
        second({ { 0, pairs[0].ends[1] }, { 2, pairs[2].ends[0] } }),
        third({ { 0, pairs[1].ends[1] }, { 1, pairs[2].ends[1] } }) {}

    socket_pair pairs[3];
    neighbours first;
    neighbours second;
    neighbours third;
};

static sum_task task(uint32_t place, uint64_t count, uint32_t row, sum_form form, uint32_t members = 7) {
    return { members, place, 5, count, row, form };
}

// What each of three workers has in the end
static std::vector<std::vector<float>> sums_of(std::vector<std::vector<float>> values, uint32_t row, sum_form form) {
    three_workers workers;
    neighbours * all[] = { &workers.first, &workers.second, &workers.third };
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(3);
    for (uint32_t place = 0; place < 3; place++) {
        threads.emplace_back([&, place] {
            progress doing;
            wrong[place] = thrown_by([&] {
                add_up(task(place, values[place].size(), row, form), values[place].data(), *all[place], doing);
            });
        });
    }
    for (auto & thread : threads) {
        thread.join();
    }
    CHECK(wrong == std::vector<std::string>(3));
    return values;
}

TEST(sums_are_added_in_the_order_of_places_on_every_worker) {
    const std::vector<std::vector<float>> values = { some_values(96, 1), some_values(96, 2), some_values(96, 3) };
    const auto sums = sums_of(values, 32, sum_form::f32);
    std::vector<float> expected(96);
    for (size_t i = 0; i < expected.size(); i++) {
        expected[i] = (values[0][i] + values[1][i]) + values[2][i];
    }
    CHECK(sums[0] == expected && sums[1] == expected && sums[2] == expected);
}

TEST(rounded_sums_have_the_same_bits_on_every_worker) {
    for (const auto & [form, error] : { std::pair(sum_form::half_rows, 0.3f), std::pair(sum_form::q8, 4.0f) }) {
        const std::vector<std::vector<float>> values = { some_values(128, 4), some_values(128, 5),
            some_values(128, 6) };
        const auto sums = sums_of(values, 64, form);
        CHECK(sums[0] == sums[1] && sums[1] == sums[2]);
        for (size_t i = 0; i < sums[0].size(); i++) {
            const float exact = values[0][i] + values[1][i] + values[2][i];
            CHECK(std::fabs(sums[0][i] - exact) < error);
        }
        CHECK(sums[0][0] != values[0][0] + values[1][0] + values[2][0]);
    }
}

TEST(sums_longer_than_all_that_is_under_way_come_to_an_end) {
    const size_t count = SUM_BYTES / sizeof(float); // far more than sockets and the window hold
    const auto sums =
        sums_of({ std::vector<float>(count, 1), std::vector<float>(count, 2), std::vector<float>(count, 4) }, 4096,
            sum_form::f32);
    CHECK(sums[0] == std::vector<float>(count, 7) && sums[0] == sums[1] && sums[1] == sums[2]);
}

// Two workers, of which the second one is this test
struct one_worker {
    one_worker() : worker({ { 1, pair.ends[0] } }), other({ { 0, pair.ends[1] } }) {}

    std::string why(std::vector<float> values, const std::function<void()> & sends, sum_form form = sum_form::f32) {
        sends();
        progress doing;
        return thrown_by([&] { add_up(task(0, values.size(), 32, form, 3), values.data(), worker, doing); });
    }

    socket_pair pair;
    neighbours worker;
    neighbours other;
};

TEST(a_neighbour_that_sends_what_cannot_be_added_is_named) {
    const auto why = [](const blob & data, sum_form form = sum_form::f32, uint64_t token = 5) {
        one_worker two;
        return two.why(std::vector<float>(32, 1), [&] { two.other.push_summand(0, token, data); }, form);
    };
    std::vector<float> values(32, 1);
    for (const float bad : { std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity() }) {
        values[31] = bad;
        const auto * bytes = reinterpret_cast<const uint8_t *>(values.data());
        CHECK(why(blob(bytes, bytes + 128)) == "lost neighbour 1: it pushed values that are not finite");
    }
    CHECK(why(blob(128, 0)).empty());
    CHECK(has(why(blob(124, 0)), "lost neighbour 1: it pushed another number of values"));
    CHECK(has(why(blob(132, 0)), "lost neighbour 1: it pushed another number of values"));
    CHECK(has(why(blob(128, 0), sum_form::q8), "lost neighbour 1: it pushed another number"));
    CHECK(has(why(blob(66, 0xff), sum_form::half_rows), "lost neighbour 1: it pushed half floats with an exponent"));
    CHECK(has(why(blob(34, 0xff), sum_form::q8), "lost neighbour 1: it pushed values that are not finite"));
    CHECK(has(why(blob(128, 0), sum_form::f32, 6), "lost neighbour 1: it pushed something else"));
}

TEST(a_result_is_no_part_of_a_sum_nor_the_other_way_round) {
    one_worker two;
    const auto pushed = [&] { two.other.push(0, 5, blob(128, 0)); };
    CHECK(has(two.why(std::vector<float>(32), pushed), "lost neighbour 1: it pushed something else"));
    one_worker again;
    again.other.push_summand(0, 5, blob(128, 0));
    CHECK(has(thrown_by([&] { again.worker.take(1, 5, 128); }), "lost neighbour 1: it pushed something else"));
}

TEST(a_neighbour_that_is_gone_is_named_and_values_of_ones_own_are_not_its_fault) {
    one_worker two;
    two.other.end();
    CHECK(has(two.why(std::vector<float>(32), [] {}), "lost neighbour 1: it "));
    one_worker own;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::string why = own.why(std::vector<float>(32, nan), [] {});
    CHECK(why == "its device computed values that are not finite");
}

TEST(a_sum_is_told_as_what_is_waited_for_and_the_end_interrupts_it) {
    one_worker two;
    progress doing;
    std::vector<float> values(32);
    std::string why;
    std::thread adding(
        [&] { why = thrown_by([&] { add_up(task(0, 32, 32, sum_form::f32, 3), values.data(), two.worker, doing); }); });
    while (doing.waits == 0) {
        std::this_thread::yield();
    }
    CHECK(doing.waits == 2);
    two.worker.end();
    adding.join();
    CHECK(why == interrupted().what());
}

static sum_body small_sum() {
    sum_body body;
    body.members = 3;
    body.buffer = 1;
    body.row = 32;
    body.size = 128;
    return body;
}

TEST(sums_that_no_head_may_ask_for_are_refused) {
    const auto why = [](const std::function<void(sum_body &)> & spoil) {
        sum_body body = small_sum();
        spoil(body);
        return thrown_by([&] { task_of(body); });
    };
    CHECK(why([](sum_body &) {}).empty());
    CHECK(has(why([](sum_body & b) { b.members = 2; }), "workers that there are not"));
    CHECK(has(why([](sum_body & b) { b.place = NEIGHBOURS; }), "workers that there are not"));
    CHECK(has(why([](sum_body & b) { b.place = 4000000000; }), "workers that there are not"));
    CHECK(has(why([](sum_body & b) { b.members |= 1u << NEIGHBOURS; }), "workers that there are not"));
    CHECK(has(why([](sum_body & b) { b.members = 1; }), "of one worker"));
    CHECK(has(why([](sum_body & b) { b.row = 0; }), "parts of rows"));
    CHECK(has(why([](sum_body & b) { b.row = 31; }), "parts of rows"));
    CHECK(has(why([](sum_body & b) {
        b.row = SUMMAND_BYTES / 4 + 1;
        b.size = b.row * 4ull;
    }),
        "parts of rows"));
    CHECK(has(why([](sum_body & b) { b.offset = 2; }), "parts of rows or values"));
    CHECK(has(why([](sum_body & b) { b.size = SUM_BYTES + 128; }), "too much"));
    CHECK(has(why([](sum_body & b) { b.form = 3; }), "a form that there is not"));
    CHECK(has(why([](sum_body & b) { b.absent = 2; }), "a form that there is not"));
    CHECK(has(why([](sum_body & b) {
        b.form = 2;
        b.row = 16;
    }),
        "parts of blocks"));
}

TEST(a_head_cannot_sum_beyond_a_buffer_or_with_a_neighbour_that_there_is_not) {
    sum_body body = small_sum();
    CHECK(has(hand().refused(body), "there is no neighbour 1"));
    body.offset = 4096 - 64;
    CHECK(!hand().refused(body).empty());
    body = small_sum();
    body.buffer = 2;
    CHECK(!hand().refused(body).empty());
}

TEST(more_graphs_are_kept_once_there_are_sums) {
    const socket_pair pair;
    neighbours other({ { 0, pair.ends[1] } });
    hand head(true, { { 1, pair.ends[0] } });
    fill_body zeros;
    zeros.buffer = 1;
    zeros.size = 4096;
    head.worker.write_body(3, zeros);
    head.worker.write_body(4, small_sum());
    other.push_summand(0, 0, blob(128, 0));
    for (uint64_t uid = 1; uid <= 4 * STORED_GRAPHS; uid++) {
        small_graph graph;
        graph.body.uid = uid;
        const std::string bytes = graph.bytes();
        head.worker.write_body(5, graph.body, bytes.data(), bytes.size());
    }
    compute_body oldest;
    oldest.uid = 1;
    head.worker.write_body(6, oldest);
    head.worker.write_body(7, sync_body());
    CHECK(head.take().first == message::synced);
    head.worker.shut();
    CHECK(head.server.end().empty());
}

TEST(an_absent_worker_adds_nothing_whatever_lies_there) {
    const socket_pair pair;
    neighbours other({ { 0, pair.ends[1] } });
    hand head(true, { { 1, pair.ends[0] } });
    write_body write;
    write.buffer = 1;
    const std::vector<float> noise(32, std::numeric_limits<float>::quiet_NaN());
    head.worker.write_body(3, write, noise.data(), 128);
    sum_body body = small_sum();
    body.absent = 1;
    const std::vector<float> ones(32, 1);
    const auto * bytes = reinterpret_cast<const uint8_t *>(ones.data());
    other.push_summand(0, 0, blob(bytes, bytes + 128));
    head.worker.write_body(4, body);
    read_body read;
    read.buffer = 1;
    read.size = 128;
    head.worker.write_body(5, read);
    CHECK(head.take().second == blob(bytes, bytes + 128));
    CHECK(other.take_summand(0, 0) == blob(128, 0));
    head.worker.shut();
    CHECK(head.server.end().empty());
}

// Tensors of two workers that have a connection, with values
struct two_tensors {
    explicit two_tensors(std::vector<ggml_backend_t> workers) : backends(std::move(workers)) {
        for (size_t i = 0; i < backends.size(); i++) {
            contexts.emplace_back(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
            tensors.push_back(ggml_new_tensor_2d(contexts.back().get(), GGML_TYPE_F32, 64, 3));
            memory.emplace_back(ggml_backend_alloc_ctx_tensors(contexts.back().get(), backends[i]));
            tensors.back()->flags |= GGML_TENSOR_FLAG_COMPUTE;
            values.push_back(some_values(192, static_cast<uint32_t>(i)));
            ggml_backend_tensor_set(tensors.back(), values.back().data(), 0, ggml_nbytes(tensors.back()));
        }
    }
    std::vector<float> back(size_t number) const {
        std::vector<float> read(192);
        ggml_backend_tensor_get(tensors[number], read.data(), 0, ggml_nbytes(tensors[number]));
        return read;
    }

    std::vector<ggml_backend_t> backends;
    std::vector<ggml_context_ptr> contexts;
    std::vector<ggml_tensor *> tensors;
    std::vector<ggml_backend_buffer_ptr> memory;
    std::vector<std::vector<float>> values;
};

static void check_sums(const std::vector<ggml_backend_t> & workers) {
    two_tensors both(workers);
    void * sums = open_sums(both.backends.data(), 2);
    CHECK(sums != nullptr && compute_sum(sums, both.tensors.data()));
    std::vector<float> expected(192);
    for (size_t i = 0; i < expected.size(); i++) {
        expected[i] = both.values[0][i] + both.values[1][i];
    }
    CHECK(both.back(0) == expected && both.back(1) == expected);
    close_sums(sums);
}

TEST(ggml_has_workers_add_up_what_they_have) {
    const socket_pair between;
    check_sums({ open_client(0, { { 1, between.ends[0] } }), open_client(1, { { 0, between.ends[1] } }) });
}

// As a GPU is: its memory is not this process's, and it leaves what it was given to itself
TEST(devices_whose_memory_nobody_else_reads_have_their_sums_as_well) {
    const socket_pair between;
    auto & first = *new late_device();
    auto & second = *new late_device();
    check_sums({ open_late_client(first, 0, { { 1, between.ends[0] } }),
        open_late_client(second, 1, { { 0, between.ends[1] } }) });
}

TEST(workers_without_a_connection_are_left_to_ggml) {
    const socket_pair between;
    std::vector<ggml_backend_t> apart = { open_client(0, { { 1, between.ends[0] } }), open_client(1) };
    CHECK(open_sums(apart.data(), 2) == nullptr);
    std::vector<ggml_backend_t> same = { apart[0], apart[0] };
    CHECK(open_sums(same.data(), 2) == nullptr);
    CHECK(has(thrown_by([] { choose_sums("f64"); }), "GGML_MESH_SUMS is `f64`"));
    close(between.ends[1]);
}

TEST(time_in_which_a_worker_waits_for_a_member_is_not_its_own) {
    std::atomic<uint64_t> member{ 0 };
    owed_answers owed;
    owed.add(message::compute, 1, 0);
    owed.settle(1);
    owed.add_sum(2, 128);
    owed.add(message::read, 3, 0);
    owed.add_member(2, member, 7);
    CHECK(owed.at() == 2);
    for (int i = 0; i < 1000; i++) {
        CHECK(owed.tick(0, false).empty());
    }
    member = 7; // it is there: from now on both are waited for
    CHECK(owed.at() == 3);
    std::string why;
    for (int i = 0; i < 70 && why.empty(); i++) {
        why = owed.tick(0, false);
    }
    CHECK(has(why, "it does not answer"));
}
