#include "release.h"

#include "shapes.h"

#include <cstdio>
#include <stdexcept>

namespace mesh {

int minor_of(const std::string & version) {
    int major = 0;
    int minor = 0;
    if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2) {
        throw std::runtime_error("ggml has no version but " + version);
    }
    return major > 0 ? 1000 : minor;
}

// By name: a release may not have it
static bool is(const ggml_tensor * t, const char * operation) {
    return std::strcmp(ggml_op_name(t->op), operation) == 0;
}

void check_older_kernels(const ggml_tensor * t, int minor) {
    if (minor < 20) {
        REQUIRE(!is(t, "CONCAT") || !ggml_is_quantized(t->type)); // counts elements where there are blocks
        REQUIRE(!is(t, "SET_ROWS") || is_f32(t->src[0]));
        REQUIRE(!is(t, "IM2COL") || is_f32(t) || t->src[0]->type == GGML_TYPE_F16);
    }
    if (minor < 25) {
        REQUIRE((!is(t, "UNARY") && !is(t, "SCALE")) || t->type != GGML_TYPE_BF16);
        REQUIRE(!is(t, "DSV4_HC_PRE") || param_i32(t, 1) == 0);
        REQUIRE(!is(t, "DSV4_HC_POST") || t->src[3] != nullptr);
    }
}

} // namespace mesh
