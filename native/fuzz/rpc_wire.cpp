#include "rpc_wire.h"

#include <algorithm>
#include <cstring>

void damage_tensor(dice & d, rpc_tensor & t, uint64_t odd, const std::vector<uint64_t> & ids) {
    const int i = (int) d.below(GGML_MAX_DIMS);
    switch (d.below(14)) {
    case 0:
        t.type = (uint32_t) (d.one_in(4) ? odd : d.below(GGML_TYPE_COUNT));
        break;
    case 1:
        t.ne[i] = (uint32_t) odd;
        break;
    case 2:
        t.nb[i] = (uint32_t) odd;
        break;
    case 3:
        t.ne[i] = (uint32_t) (t.ne[i] + d.within(-2, 2));
        break;
    case 4:
        t.nb[i] = (uint32_t) (t.nb[i] + d.within(-8, 8) * 4);
        break;
    case 5:
        t.op = (uint32_t) (d.one_in(4) ? odd : d.below(GGML_OP_COUNT));
        break;
    case 6:
        t.op_params[d.below(16)] = (int32_t) odd;
        break;
    case 7:
        t.src[d.below(GGML_MAX_SRC)] = d.one_in(3) ? odd : ids[d.below(ids.size())];
        break;
    case 8:
        t.src[d.below(4)] = 0;
        break;
    case 9:
        t.view_src = d.one_in(3) ? odd : ids[d.below(ids.size())];
        break;
    case 10:
        t.data = d.one_in(2) ? odd : t.data + d.within(-64, 64) * 4;
        break;
    case 11:
        t.buffer = odd;
        break;
    case 12: {
        const int j = (int) d.below(GGML_MAX_DIMS);
        std::swap(t.ne[i], t.ne[j]);
        if (d.one_in(2)) {
            std::swap(t.nb[i], t.nb[j]);
        }
    } break;
    default:
        t.id = d.one_in(2) ? odd : ids[d.below(ids.size())];
        break;
    }
}

std::vector<uint8_t> packed(uint8_t cmd, uint64_t length, const void * data, size_t size) {
    std::vector<uint8_t> bytes(1 + sizeof(length) + size);
    bytes[0] = cmd;
    memcpy(bytes.data() + 1, &length, sizeof(length));
    if (size > 0) {
        memcpy(bytes.data() + 1 + sizeof(length), data, size);
    }
    return bytes;
}

rpc_tensor plain_tensor(dice & d, uint64_t buffer, uint64_t data) {
    rpc_tensor t = {};
    t.id = 1 + d.below(1000);
    t.buffer = buffer;
    t.data = data;
    t.type = GGML_TYPE_F32;
    uint32_t stride = 4;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        t.ne[i] = (uint32_t) d.within(1, 8);
        t.nb[i] = stride;
        stride *= t.ne[i];
    }
    return t;
}

uint64_t size_of(const rpc_tensor & t) {
    return 4ull * t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
}

rpc_tensor wire_tensor(const ggml_tensor * t) {
    rpc_tensor r = {};
    r.id = (uint64_t) t;
    r.type = t->type;
    r.buffer = (uint64_t) t->buffer;
    r.data = (uint64_t) t->data;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        r.ne[i] = (uint32_t) t->ne[i];
        r.nb[i] = (uint32_t) t->nb[i];
    }
    r.op = t->op;
    memcpy(r.op_params, t->op_params, sizeof(r.op_params));
    r.flags = t->flags;
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        r.src[i] = (uint64_t) t->src[i];
    }
    r.view_src = (uint64_t) t->view_src;
    r.view_offs = t->view_offs;
    r.use_count = 1;
    return r;
}

void collect(ggml_tensor * t, std::vector<ggml_tensor *> & tensors) {
    if (t == nullptr || std::find(tensors.begin(), tensors.end(), t) != tensors.end()) {
        return;
    }
    if (t->src[0] != t) {
        for (ggml_tensor * s : t->src) {
            if (s != t) {
                collect(s, tensors);
            }
        }
    }
    collect(t->view_src, tensors);
    tensors.push_back(t);
}
