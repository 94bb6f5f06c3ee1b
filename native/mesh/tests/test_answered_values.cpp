// What a worker answers is looked at where it can be: places in rows of logits, and hidden states.
#include "activations.h"
#include "answered_values.h"
#include "client.h"
#include "finite.h"
#include "served.h"
#include "watched.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"

#include <cmath>

using namespace mesh;

// Tensors of samplers, of a vocabulary of a hundred
class chain {
public:
    ggml_tensor * make(ggml_type type, int64_t count) { return ggml_new_tensor_1d(ctx(), type, count); }
    ggml_tensor * logits() {
        ggml_tensor * made = ggml_mul_mat(ctx(), ggml_new_tensor_2d(ctx(), GGML_TYPE_F32, 300, 100),
            ggml_new_tensor_2d(ctx(), GGML_TYPE_F32, 300, 1));
        ggml_set_name(made, "result_output");
        return ggml_reshape_1d(ctx(), made, 100);
    }
    ggml_tensor * of(ggml_tensor * values, ggml_tensor * places) { // those of them
        return ggml_get_rows(ctx(), ggml_reshape_2d(ctx(), values, 1, values->ne[0]), places);
    }
    ggml_context * ctx() { return context.get(); }

private:
    ggml_context_ptr context{ ggml_init({ ggml_tensor_overhead() * 64, nullptr, true }) };
};

TEST(candidates_are_places_in_the_row_that_they_were_chosen_of) {
    chain c;
    ggml_tensor * best = ggml_top_k(c.ctx(), c.logits(), 40);
    CHECK(limit_of_places(best) == 100);
    CHECK(limit_of_places(ggml_argmax(c.ctx(), c.logits())) == 100);
    CHECK(limit_of_places(ggml_view_1d(c.ctx(), best, 7, 0)) == 100);
    CHECK(limit_of_places(ggml_cont(c.ctx(), ggml_reshape_2d(c.ctx(), best, 1, 40))) == 100);
    ggml_tensor * rows = c.of(c.logits(), best);
    ggml_tensor * better = ggml_argsort(c.ctx(), ggml_reshape_1d(c.ctx(), rows, 40), GGML_SORT_ORDER_DESC);
    CHECK(limit_of_places(better) == 40);
    CHECK(limit_of_places(c.of(best, better)) == 100); // tokens again
}

TEST(a_token_that_is_drawn_is_below_the_vocabulary) {
    chain c;
    ggml_tensor * sums = ggml_cumsum(c.ctx(), ggml_soft_max(c.ctx(), c.logits()));
    ggml_tensor * count = ggml_sum(c.ctx(), ggml_step(c.ctx(), ggml_sub(c.ctx(), sums, c.make(GGML_TYPE_F32, 1))));
    ggml_tensor * drawn = ggml_cast(c.ctx(), ggml_clamp(c.ctx(), count, 1, 100), GGML_TYPE_I32);
    CHECK(limit_of_places(drawn) == 100);
    ggml_tensor * best = ggml_top_k(c.ctx(), c.logits(), 40);
    CHECK(limit_of_places(c.of(best, drawn)) == 100);
}

TEST(of_other_tensors_nothing_is_known) {
    chain c;
    CHECK(limit_of_places(c.make(GGML_TYPE_I32, 5)) == 0);
    CHECK(limit_of_places(c.make(GGML_TYPE_F32, 5)) == 0 && limit_of_places(c.logits()) == 0);
    CHECK(limit_of_places(ggml_cast(c.ctx(), c.make(GGML_TYPE_F32, 5), GGML_TYPE_I32)) == 0);
}

// Devices that choose experts in one go write the chosen places alone
TEST(what_lies_between_rows_of_places_may_be_anything) {
    chain c;
    ggml_tensor * scores = ggml_new_tensor_2d(c.ctx(), GGML_TYPE_F32, 4, 2);
    ggml_tensor * sorted = ggml_argsort(c.ctx(), scores, GGML_SORT_ORDER_DESC);
    const ggml_tensor * chosen = ggml_view_2d(c.ctx(), sorted, 2, 2, sorted->nb[1], 0);
    std::vector<int32_t> places = { 3, 0, 99, -1, 0, 2, 99, 99 };
    CHECK(are_places(chosen, places.data()) && !are_places(sorted, places.data()));
    for (const size_t at : { 0, 1, 4, 5 }) {
        std::vector<int32_t> wrong = places;
        wrong[at] = 4;
        CHECK(!are_places(chosen, wrong.data()));
    }
}

TEST(values_are_looked_at_one_by_one) {
    const int32_t places[4] = { 0, 99, 100, -1 };
    CHECK(find_beyond(places, 2, 100) == nullptr && find_beyond(places, 3, 100) == &places[2]);
    CHECK(find_beyond(places + 3, 1, 100) == &places[3] && find_beyond(places, 0, 1) == nullptr);
    std::vector<float> values(70, 3e38f);
    CHECK(are_finite(values.data(), values.size()) && are_finite(values.data(), 0));
    for (const float wrong : { NAN, -NAN, INFINITY, -INFINITY }) {
        for (const size_t at : { 0, 33, 69 }) {
            std::vector<float> one = values;
            one[at] = wrong;
            CHECK(!are_finite(one.data(), one.size()));
        }
    }
}

// What the head tells of a worker by hand that answers a request for `target` with these
static std::string told_of(const std::vector<int32_t> & says, std::vector<int32_t> & target, int64_t limit) {
    told parent;
    watch all;
    watched_worker worker(all, 0);
    const size_t size = says.size() * sizeof says[0];
    const uint64_t id = worker.link.ask_places(read_body(), target.data(), size, limit);
    worker.end.write(message::data, id, {}, says.data(), size);
    worker.link.wait(id);
    worker.link.lose("the test is over");
    return parent.all();
}

TEST(a_worker_with_tokens_beyond_the_vocabulary_is_lost) {
    std::vector<int32_t> target(2, 5);
    CHECK(told_of({ 99, 100 }, target, 100) == "lost 0 it answers with place 100 of 100\n");
    CHECK(told_of({ -1, 0 }, target, 100) == "lost 0 it answers with place -1 of 100\n");
    CHECK(target == std::vector<int32_t>(2, 5)); // nobody has seen them
    CHECK(told_of({ 99, 0 }, target, 100) == "lost 0 the test is over\n" && target[0] == 99);
    CHECK(told_of({ 100, -1 }, target, 0) == "lost 0 the test is over\n" && target[1] == -1);
}

static ggml_backend_reg no_registry = {};
static const weights_index no_weights;

// A worker that has a result of this in the memory of a graph; before it is served, so that its loss is seen
class with_state {
public:
    explicit with_state(ggml_backend_buffer_usage usage = GGML_BACKEND_BUFFER_USAGE_COMPUTE) {
        device = open_workers({ { server.own_end } }, &no_registry, no_weights)[0];
        state = ggml_scale(context.get(), ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 64), 2);
        memory.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), &device->buffer_type));
        ggml_backend_buffer_set_usage(memory.get(), usage);
    }
    ~with_state() {
        memory.reset();
        device->worker->link.lose("the test is over");
    }

    // What is read of what it has
    std::vector<float> read(float last) {
        std::vector<float> values(64, 1);
        values.back() = last;
        ggml_backend_tensor_set(state, values.data(), 0, ggml_nbytes(state));
        ggml_backend_tensor_get(state, values.data(), 0, ggml_nbytes(state));
        return values;
    }

    told parent;
    ggml_tensor * state;
    client_device * device;

private:
    served server;
    ggml_context_ptr context{ ggml_init({ ggml_tensor_overhead() * 4, nullptr, true }) };
    ggml_backend_buffer_ptr memory;
};

TEST(a_worker_whose_hidden_states_are_not_finite_is_lost) {
    for (const char * kind : { "f32", "f16" }) {
        choose_activations(kind);
        for (const float wrong : { NAN, INFINITY }) {
            with_state worker;
            CHECK(worker.read(2).back() == 2);
            CHECK(worker.read(wrong) == std::vector<float>(64, 0));
            CHECK(worker.parent.all() == "lost 0 it sent values that are not finite\n");
        }
        choose_activations("");
    }
}

TEST(a_worker_whose_choice_of_experts_cannot_be_is_lost) {
    for (const int32_t place : { 3, 4 }) {
        with_state worker;
        worker.state->type = GGML_TYPE_I32; // 64 places, as 16 rows of 4, of which two are chosen
        worker.state->op = GGML_OP_ARGSORT;
        ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 4, nullptr, true }));
        worker.state->src[0] = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 4, 16);
        ggml_tensor * chosen = ggml_view_2d(context.get(), worker.state, 2, 16, 16, 0);
        CHECK(ggml_backend_view_init(chosen) == GGML_STATUS_SUCCESS);
        std::vector<int32_t> places(64, 99);
        for (size_t i = 0; i < 64; i += 4) {
            places[i] = places[i + 1] = i == 60 ? place : 0;
        }
        ggml_backend_tensor_set(worker.state, places.data(), 0, 256);
        ggml_backend_tensor_get(chosen, places.data(), 0, ggml_nbytes(chosen));
        CHECK(places[60] == (place == 3 ? 3 : 0));
        CHECK(!worker.device->worker->link.wait_for_room() == (place == 4));
        worker.device->worker->link.lose("the test is over");
        const char * why = place == 3 ? "the test is over" : "it answers with a place that there is not";
        CHECK(worker.parent.all() == std::string("lost 0 ") + why + "\n");
    }
}

TEST(what_is_no_hidden_state_may_be_infinite) {
    with_state logits;
    ggml_set_name(logits.state, "result_output"); // a bias may forbid a token
    CHECK(std::isinf(logits.read(-INFINITY).back()));
    with_state cache(GGML_BACKEND_BUFFER_USAGE_ANY);
    CHECK(std::isnan(cache.read(NAN).back()));
}
