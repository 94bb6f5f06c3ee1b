#include "sizes.h"

#include "names.h"
#include "protocol.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <stdexcept>

namespace mesh {

// Where the copies of FLASH_ATTN_EXT begin, as CUDA and HIP have it
static constexpr uint64_t COPY_ALIGNMENT = 128;

// What is tried as row_padding, in elements
static constexpr uint32_t PADDINGS[] = { 0, 64, 128, 256, 512, 1024, 2048, 4096 };

static uint64_t padding_of(const size_rule & rule, ggml_type type, int64_t width) {
    if (rule.row_padding == 0 || !ggml_is_quantized(type) || width % rule.row_padding == 0) {
        return 0;
    }
    return ggml_row_size(type, rule.row_padding - width % rule.row_padding);
}

uint64_t allocation_size(const size_rule & rule, const ggml_tensor * tensor) {
    uint64_t size = ggml_nbytes(tensor);
    if (rule.attention_copies && tensor->op == GGML_OP_FLASH_ATTN_EXT) {
        for (const ggml_tensor * source : { tensor->src[1], tensor->src[2] }) {
            if (source != nullptr && source->type != GGML_TYPE_F16) {
                size = (size + COPY_ALIGNMENT - 1) / COPY_ALIGNMENT * COPY_ALIGNMENT;
                size += static_cast<uint64_t>(ggml_nelements(source)) * ggml_type_size(GGML_TYPE_F16);
            }
        }
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

size_rule find_size_rule(ggml_backend_buffer_type_t memory) {
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
    if (rule.attention_copies && !has_attentions(asked, rule)) {
        refuse(memory, "FLASH_ATTN_EXT");
    }
    return rule;
}

} // namespace mesh
