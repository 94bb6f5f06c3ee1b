#include "operations.h"

#include "names.h"
#include "release.h"
#include "shapes.h"

#include "ggml-backend.h"

#include <unordered_map>

namespace mesh {

typedef void (*check)(const ggml_tensor *);

static const std::pair<const char *, check> CHECKS[] = {
    { "ADD", check_binary },
    { "ADD_ID", check_add_id },
    { "ARANGE", check_arange },
    { "ARGMAX", check_argmax },
    { "ARGSORT", check_argsort },
    { "CLAMP", check_clamp },
    { "CONCAT", check_concat },
    { "CONT", check_copy },
    { "COS", check_unary },
    { "CPY", check_cpy },
    { "CUMSUM", check_cumsum },
    { "DIAG", check_diag },
    { "DIAG_MASK_INF", check_diag_mask },
    { "DIV", check_binary },
    { "DSV4_HC_COMB", check_hyper_comb },
    { "DSV4_HC_POST", check_hyper_post },
    { "DSV4_HC_PRE", check_hyper_pre },
    { "DUP", check_copy },
    { "FILL", check_fill },
    { "FLASH_ATTN_EXT", check_flash_attn },
    { "GATED_DELTA_NET", check_gated_delta_net },
    { "GATED_LINEAR_ATTN", check_gated_linear },
    { "GET_ROWS", check_get_rows },
    { "GLU", check_glu },
    { "GROUP_NORM", check_group_norm },
    { "IM2COL", check_im2col },
    { "L2_NORM", check_norm },
    { "LIGHTNING_INDEXER", check_lightning_indexer },
    { "LOG", check_unary },
    { "MEAN", check_sum_rows },
    { "MUL", check_binary },
    { "MUL_MAT", check_mul_mat },
    { "MUL_MAT_ID", check_mul_mat_id },
    { "NORM", check_norm },
    { "PAD", check_pad },
    { "POOL_2D", check_pool_2d },
    { "REPEAT", check_repeat },
    { "RMS_NORM", check_rms_norm },
    { "ROPE", check_rope },
    { "ROPE_BACK", check_rope },
    { "RWKV_WKV6", check_wkv6 },
    { "RWKV_WKV7", check_wkv7 },
    { "SCALE", check_scale },
    { "SET", check_set },
    { "SET_ROWS", check_set_rows },
    { "SIN", check_unary },
    { "SOFT_MAX", check_soft_max },
    { "SOLVE_TRI", check_solve_tri },
    { "SQR", check_unary },
    { "SQRT", check_unary },
    { "SSM_CONV", check_ssm_conv },
    { "SSM_SCAN", check_ssm_scan },
    { "SUB", check_binary },
    { "SUM", check_sum },
    { "SUM_ROWS", check_sum_rows },
    { "TOP_K", check_top_k },
    { "TRI", check_tri },
    { "UNARY", check_unary },
};

// nullptr: there is none
static check check_of(const char * operation) {
    static const std::unordered_map<std::string, check> all(std::begin(CHECKS), std::end(CHECKS));
    const auto found = all.find(operation);
    return found == all.end() ? nullptr : found->second;
}

// The first operations of the schema are those that compute nothing
static constexpr uint32_t NOTHING_COUNT = 5;

bool all_operations_have_checks() {
    for (uint32_t i = 0; i < OPERATION_COUNT; i++) {
        if ((check_of(OPERATIONS[i].name) == nullptr) != (i < NOTHING_COUNT)) {
            return false;
        }
    }
    return std::size(CHECKS) + NOTHING_COUNT == OPERATION_COUNT;
}

bool computes_nothing(const ggml_tensor * t) {
    return number_of_operation(t->op) < NOTHING_COUNT;
}

void check_operation(const ggml_tensor * t) {
    if (computes_nothing(t)) {
        return;
    }
    const uint32_t number = number_of_operation(t->op);
    const check shapes = check_of(ggml_op_name(t->op));
    if (number == NO_NUMBER || shapes == nullptr) {
        throw bad_message(std::string(ggml_op_name(t->op)) + " is no operation of the protocol");
    }
    const operation_rule & rule = OPERATIONS[number];
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        REQUIRE(i >= rule.least || t->src[i] != nullptr);
        REQUIRE(i < rule.most || t->src[i] == nullptr);
    }
    if (ggml_is_empty(t)) {
        return;
    }
    for (const ggml_tensor * source : t->src) {
        // one of two that are joined may be empty, and logits of no token that get a row for samplers
        REQUIRE(source == nullptr || !ggml_is_empty(source) || t->op == GGML_OP_CONCAT || t->op == GGML_OP_PAD);
    }
    static const int minor = minor_of(ggml_release());
    shapes(t);
    check_older_kernels(t, minor);
}

static bool in_place(const ggml_tensor * t, int source) {
    const uint32_t number = number_of_operation(t->op);
    return number != NO_NUMBER && (OPERATIONS[number].over >> source & 1) != 0;
}

void check_overlap(const ggml_tensor * t) {
    if (computes_nothing(t)) {
        return;
    }
    const auto start = reinterpret_cast<uint64_t>(t->data);
    const uint64_t end = start + ggml_backend_buffer_get_alloc_size(t->buffer, t); // some kernels write behind it
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const ggml_tensor * source = t->src[i];
        // only within one buffer: in some backends (Vulkan) all of them begin at the same address
        if (source == nullptr || source->buffer != t->buffer) {
            continue;
        }
        const auto first = reinterpret_cast<uint64_t>(source->data);
        if (first >= end || first + ggml_nbytes(source) <= start) {
            continue;
        }
        REQUIRE(in_place(t, i));
        REQUIRE(source->data == t->data && source->type == t->type);
        REQUIRE(ggml_are_same_shape(source, t) && ggml_are_same_stride(source, t));
    }
}

} // namespace mesh
