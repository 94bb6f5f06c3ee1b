// Which operations a device leaves to the device of their layer.
#include "belonging.h"
#include "check.h"

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"

using namespace mesh;

// Two layers on two kinds of memory, in which nothing can be stored
class layers_apart {
public:
    layers_apart() {
        for (int i = 0; i < 2; i++) {
            types[i] = {};
            memories[i] = {};
            memories[i].buft = &types[i];
            memories[i].usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        }
        scratch = memories[1];
        scratch.usage = GGML_BACKEND_BUFFER_USAGE_COMPUTE;
    }
    ggml_tensor * fresh(ggml_backend_buffer * memory = nullptr) {
        ggml_tensor * tensor = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 8, 8);
        tensor->buffer = memory;
        return tensor;
    }
    ggml_tensor * times_weights(ggml_tensor * x, int layer) {
        return ggml_mul_mat(context.get(), fresh(&memories[layer]), x);
    }
    bool refused(const ggml_tensor * op, int device) { return belongs_elsewhere(op, &types[device]); }

    ggml_context_ptr context{ ggml_init({ ggml_tensor_overhead() * 1024, nullptr, true }) };
    ggml_backend_buffer_type types[2];
    ggml_backend_buffer memories[2];
    ggml_backend_buffer scratch;
};

TEST(a_sum_stays_with_its_layer_and_the_norm_behind_it_does_not) {
    layers_apart model;
    ggml_context * ctx = model.context.get();
    ggml_tensor * given = model.fresh();
    ggml_tensor * end = ggml_add(ctx, model.times_weights(given, 0), given);
    CHECK(!model.refused(end, 0));
    CHECK(model.refused(end, 1));
    ggml_tensor * norm = ggml_rms_norm(ctx, ggml_reshape_2d(ctx, end, 8, 8), 1e-5f);
    CHECK(!model.refused(norm, 1));
    CHECK(!model.refused(ggml_get_rows(ctx, end, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1)), 1));
    ggml_tensor * next = ggml_add(ctx, model.times_weights(norm, 1), end);
    CHECK(!model.refused(next, 1)); // although it comes from both
}

TEST(attention_stays_with_its_cache) {
    layers_apart model;
    ggml_context * ctx = model.context.get();
    ggml_tensor * query = model.times_weights(model.fresh(), 0);
    ggml_tensor * scores = ggml_mul_mat(ctx, ggml_view_2d(ctx, model.fresh(&model.memories[0]), 8, 4, 32, 0), query);
    CHECK(model.refused(scores, 1));
    CHECK(model.refused(ggml_soft_max(ctx, scores), 1));
    CHECK(model.refused(ggml_rms_norm(ctx, query, 1e-5f), 1)); // a norm, but not of a sum
}

TEST(what_comes_from_no_layer_is_taken) {
    layers_apart model;
    ggml_context * ctx = model.context.get();
    CHECK(!model.refused(ggml_silu(ctx, model.fresh()), 1));
    CHECK(!model.refused(ggml_silu(ctx, model.fresh(&model.scratch)), 0)); // memory of results says nothing
}

TEST(a_search_has_an_end) {
    layers_apart model;
    ggml_context * ctx = model.context.get();
    ggml_tensor * far = model.times_weights(model.fresh(), 1);
    for (int i = 0; i < 200; i++) {
        far = ggml_silu(ctx, far);
    }
    CHECK(!model.refused(far, 0)); // none was found
    ggml_tensor * both = ggml_add(ctx, model.times_weights(model.fresh(), 0), far);
    CHECK(model.refused(both, 1)); // the nearest it is
}
