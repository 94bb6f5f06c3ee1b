#include "sizes.h"

#include "names.h"
#include "protocol.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace mesh {

// Where the copies of FLASH_ATTN_EXT begin, as CUDA and HIP have it
static constexpr uint64_t COPY_ALIGNMENT = 128;

// What is tried as row_padding, in elements
static constexpr uint32_t PADDINGS[] = { 0, 64, 128, 256, ROW_PADDING };

static uint64_t padding_of(const size_rule & rule, ggml_type type, int64_t width) {
    if (rule.row_padding == 0 || !ggml_is_quantized(type) || width % rule.row_padding == 0) {
        return 0;
    }
    return ggml_row_size(type, rule.row_padding - width % rule.row_padding);
}

static uint64_t padded(uint64_t size, uint64_t to) {
    return (size + to - 1) / to * to;
}

// What Metal's kernels of attention work in: ends of keys, values and mask, which blocks of the mask are empty, results
// of parts, keys and values as f16, and places in the mask. Some of it only for some types and numbers of tokens
static uint64_t attention_room(const ggml_tensor * op) {
    const ggml_tensor * query = op->src[0];
    const ggml_tensor * mask = op->src[3];
    const auto tokens = static_cast<uint64_t>(query->ne[1]);
    uint64_t size = 4 * std::min<uint64_t>(tokens, 32) * static_cast<uint64_t>(query->ne[2] * query->ne[3]) * 32 *
                    static_cast<uint64_t>(op->src[2]->ne[0] + 2);
    for (const ggml_tensor * cache : { op->src[1], op->src[2] }) {
        const uint64_t row =
            std::max<uint64_t>(cache->nb[1], sizeof(ggml_fp16_t) * static_cast<uint64_t>(cache->ne[0]));
        size += 64 * row * static_cast<uint64_t>(cache->ne[2] * cache->ne[3]);
        size += padded(sizeof(ggml_fp16_t) * static_cast<uint64_t>(ggml_nelements(cache)), 16);
    }
    if (mask == nullptr) {
        return size;
    }
    const auto rows = static_cast<uint64_t>(ggml_nrows(mask));
    const auto masks = static_cast<uint64_t>(mask->ne[2] * mask->ne[3]);
    const bool few = tokens < 20 && query->ne[0] % 32 == 0; // each token by itself, in shorter blocks
    const uint64_t blocks = padded(static_cast<uint64_t>(mask->ne[0]), few ? 32 : 64) / (few ? 32 : 64);
    size += 64 * sizeof(ggml_fp16_t) * rows + padded(blocks * (few ? tokens : padded(tokens, 8) / 8) * masks, 32);
    const auto most = static_cast<uint64_t>(std::max(op->op_params[4], 0)); // places of one row that are not masked
    return size + (most <= 4096 ? padded(sizeof(int32_t) * padded(most, 32) * rows, 16) : 0);
}

static uint64_t working_room(const ggml_tensor * op) {
    const auto result = static_cast<uint64_t>(ggml_nbytes(op));
    const std::string name = ggml_op_name(op->op);
    if (name == "MUL_MAT_ID") { // tokens of each expert, and scales
        const auto tokens = static_cast<uint64_t>(op->src[0]->ne[2] * (op->src[2]->ne[1] + 1));
        return sizeof(int32_t) * tokens + 8 + 256 * sizeof(float);
    }
    if (name == "TOP_K") { // twice the places of all, in place of those that are chosen
        return std::max(2 * sizeof(int32_t) * static_cast<uint64_t>(ggml_nelements(op->src[0])), result) - result;
    }
    if (name == "FLASH_ATTN_EXT") {
        return attention_room(op);
    }
    return name == "CUMSUM" || name == "ARGSORT" ? result : 0;
}

uint64_t allocation_size(const size_rule & rule, const ggml_tensor * tensor) {
    uint64_t size = ggml_nbytes(tensor);
    if (rule.attention_copies && tensor->op == GGML_OP_FLASH_ATTN_EXT) {
        for (const ggml_tensor * source : { tensor->src[1], tensor->src[2] }) {
            if (source != nullptr && source->type != GGML_TYPE_F16) {
                size = padded(size, COPY_ALIGNMENT);
                size += static_cast<uint64_t>(ggml_nelements(source)) * ggml_type_size(GGML_TYPE_F16);
            }
        }
    }
    if (rule.working_room) {
        size += working_room(tensor);
    }
    return size + padding_of(rule, tensor->type, tensor->ne[0]);
}

// The types of the protocol that this release of ggml has
static std::vector<ggml_type> all_types() {
    std::vector<ggml_type> types;
    for (uint32_t i = 0; i < TYPE_COUNT; i++) {
        ggml_type type;
        if (type_of_number(i, type)) {
            types.push_back(type);
        }
    }
    return types;
}

uint64_t most_padding(const size_rule & rule) {
    uint64_t most = 0;
    for (const ggml_type type : all_types()) {
        if (ggml_is_quantized(type)) {
            most = std::max(most, padding_of(rule, type, ggml_blck_size(type)));
        }
    }
    return most;
}

// Tensors that are never computed, to ask a device about
class samples {
public:
    explicit samples(ggml_backend_buffer_type_t memory) :
        memory(memory), context(ggml_init({ ggml_tensor_overhead() * 4096, nullptr, true })) {}

    // Whether the rule says what the device does of a tensor of this type, for rows of all kinds
    bool follows(const size_rule & rule, ggml_type type) {
        const int64_t block = ggml_blck_size(type);
        for (const int64_t width : { 32, 64, 96, 256, 480, 512, 768, 1024, 1056, 2880, 4096, 5120, 11008 }) {
            ggml_tensor * one = ggml_new_tensor_3d(context.get(), type, (width + block - 1) / block * block, 3, 2);
            if (size(one) != allocation_size(rule, one)) {
                return false;
            }
        }
        return true;
    }

    // Whether there is room by the rule for the results of the other operations that some device works behind
    bool has_room(const size_rule & rule, int64_t tokens) {
        ggml_context * ctx = context.get();
        ggml_tensor * experts = ggml_new_tensor_3d(ctx, GGML_TYPE_Q8_0, 64, 32, 8);
        ggml_tensor * values = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 1, tokens);
        ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, tokens);
        ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1000, tokens);
        for (const ggml_tensor * result : { ggml_mul_mat_id(ctx, experts, values, ids), ggml_cumsum(ctx, rows),
                 ggml_argsort(ctx, rows, GGML_SORT_ORDER_DESC), ggml_top_k(ctx, rows, 40) }) {
            if (size(result) > allocation_size(rule, result)) {
                return false;
            }
        }
        return true;
    }

    // Whether there is room by the rule for the result of an attention over keys and values of this type
    bool has_attention(const size_rule & rule, ggml_type type, int64_t tokens, int64_t width) {
        ggml_context * ctx = context.get();
        ggml_tensor * query = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, tokens, 8);
        ggml_tensor * key = ggml_new_tensor_3d(ctx, type, width, 512, 2);
        ggml_tensor * value = ggml_new_tensor_3d(ctx, type, width, 512, 2);
        ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 512, tokens);
        ggml_tensor * result = ggml_flash_attn_ext(ctx, query, key, value, mask, 0.1f, 0, 0);
        return size(result) <= allocation_size(rule, result);
    }

private:
    uint64_t size(const ggml_tensor * tensor) const { return ggml_backend_buft_get_alloc_size(memory, tensor); }

    ggml_backend_buffer_type_t memory;
    ggml_context_ptr context;
};

[[noreturn]] static void refuse(ggml_backend_buffer_type_t memory, const std::string & what) {
    throw std::runtime_error(std::string("the memory `") + ggml_backend_buft_name(memory) + "` takes more for " + what +
                             " than the protocol has a rule for");
}

static bool has_attentions(samples & asked, const size_rule & rule) {
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        for (const int64_t tokens : { 1, 32 }) {
            if (!asked.has_attention(rule, type, tokens, 64) || !asked.has_attention(rule, type, tokens, 128)) {
                return false;
            }
        }
    }
    return true;
}

static bool has_results(samples & asked, const size_rule & rule) {
    return asked.has_room(rule, 1) && asked.has_room(rule, 32) && asked.has_room(rule, 100);
}

size_rule find_size_rule(ggml_backend_buffer_type_t memory) {
    if (ggml_backend_buft_get_alignment(memory) > ALIGNMENT_BYTES) {
        refuse(memory, "the beginning of a tensor");
    }
    samples asked(memory);
    const std::vector<ggml_type> types = all_types();
    size_rule rule;
    const auto * padding = std::find_if(std::begin(PADDINGS), std::end(PADDINGS), [&](uint32_t tried) {
        rule.row_padding = tried;
        return asked.follows(rule, GGML_TYPE_Q4_0) && asked.follows(rule, GGML_TYPE_Q8_0);
    });
    rule.row_padding = padding == std::end(PADDINGS) ? 0 : *padding;
    for (const ggml_type type : types) {
        if (!asked.follows(rule, type)) {
            refuse(memory, std::string("tensors of ") + ggml_type_name(type));
        }
    }
    rule.attention_copies = !has_attentions(asked, rule);
    if (has_attentions(asked, rule) && has_results(asked, rule)) {
        return rule;
    }
    rule.attention_copies = false;
    rule.working_room = true;
    if (!has_attentions(asked, rule)) {
        refuse(memory, "FLASH_ATTN_EXT");
    }
    if (!has_results(asked, rule)) {
        refuse(memory, "MUL_MAT_ID, CUMSUM, ARGSORT or TOP_K");
    }
    return rule;
}

} // namespace mesh
