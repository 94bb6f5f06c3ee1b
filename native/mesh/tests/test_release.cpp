// What older releases of ggml do not take, tried with the tensors of this one.
#include "check.h"
#include "release.h"
#include "shapes.h"

#include "ggml-cpp.h"

using namespace mesh;

TEST(a_release_is_known_by_its_minor_number) {
    CHECK(minor_of("0.15.1") == 15 && minor_of("0.25.3-dirty") == 25 && minor_of("1.0.0") > 25);
    CHECK(thrown_by([] { minor_of("unknown"); }) == "ggml has no version but unknown");
    CHECK(minor_of(ggml_release()) >= 15);
}

// Tensors of which only operation, parameters and sources matter
class maker {
public:
    maker() : context(ggml_init({ ggml_tensor_overhead() * 64, nullptr, true })) {}

    ggml_tensor * make(ggml_type type) { return ggml_new_tensor_2d(context.get(), type, 64, 4); }

    // NONE, where this release has no such operation
    const ggml_tensor * node(const char * operation, ggml_type type, ggml_type source, int parameter = 0) {
        ggml_tensor * made = make(type);
        for (int op = 0; op < GGML_OP_COUNT; op++) {
            if (std::string(ggml_op_name(static_cast<ggml_op>(op))) == operation) {
                made->op = static_cast<ggml_op>(op);
            }
        }
        made->src[0] = make(source);
        made->op_params[1] = parameter;
        return made;
    }

private:
    ggml_context_ptr context;
};

TEST(what_kernels_of_older_releases_do_not_take_is_refused) {
    maker m;
    const ggml_type f32 = GGML_TYPE_F32;
    const ggml_type f16 = GGML_TYPE_F16;
    const struct {
        const ggml_tensor * tensor;
        int since;
    } cases[] = {
        { m.node("CONCAT", f32, f32), 0 },
        { m.node("CONCAT", GGML_TYPE_Q8_0, GGML_TYPE_Q8_0), 20 },
        { m.node("SET_ROWS", f16, f32), 0 },
        { m.node("SET_ROWS", f16, f16), 20 },
        { m.node("IM2COL", f16, f16), 0 },
        { m.node("IM2COL", f32, f32), 0 },
        { m.node("IM2COL", f16, f32), 20 },
        { m.node("UNARY", f16, f16), 0 },
        { m.node("UNARY", GGML_TYPE_BF16, GGML_TYPE_BF16), 25 },
        { m.node("SCALE", GGML_TYPE_BF16, GGML_TYPE_BF16), 25 },
        { m.node("ADD", GGML_TYPE_BF16, GGML_TYPE_BF16), 0 },
        { m.node("DSV4_HC_PRE", f32, f32, 0), 0 },
        { m.node("DSV4_HC_PRE", f32, f32, 1), 25 },
        { m.node("DSV4_HC_POST", f32, f32), 25 },
    };
    for (const auto & one : cases) {
        const bool known = one.tensor->op != GGML_OP_NONE;
        for (const int minor : { 15, 20, 25 }) {
            const std::string why = thrown_by([&] { check_older_kernels(one.tensor, minor); });
            CHECK((why.find(" refused, wanted: ") != std::string::npos) == (known && minor < one.since));
        }
    }
}
