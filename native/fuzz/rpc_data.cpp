// Frames of the hostile client with the content of tensors: as it is, or as half floats.
#include "half-rows.h"
#include "rpc_session.h"
#include "rpc_wire.h"

#include <algorithm>
#include <cstring>

void rpc_session::data() {
    const buffer b = some_buffer();
    const uint64_t room = b.size / 2 - 32768;
    rpc_tensor t = plain_tensor(dice_, b.handle, b.base + 32 * dice_.below(room / 32));
    rpc_tensor u = t;
    u.data = t.data + 32768;
    uint64_t offset = 4 * dice_.below(size_of(t) / 4), size = size_of(t) - offset;
    std::vector<uint64_t> ids = { t.id };
    const bool bad = hurt();
    if (bad && dice_.one_in(2)) {
        damage_tensor(dice_, dice_.one_in(2) ? t : u, odd(), ids);
    } else if (bad) {
        (dice_.one_in(2) ? offset : size) = odd();
    }
    valid = !bad;
    switch (dice_.below(7)) {
    case 0:
        return frame(RPC_CMD_GET_TENSOR, rpc_msg_get_tensor_req{ t, offset, size }, "get_tensor", size);
    case 1:
        return frame(RPC_CMD_MEMSET_TENSOR, rpc_msg_memset_tensor_req{ t, offset, size, (uint8_t) dice_.next() },
            "memset_tensor");
    case 2:
        return frame(RPC_CMD_COPY_TENSOR, rpc_msg_copy_tensor_req{ t, u }, "copy_tensor", 1);
    case 3:
        return frame(RPC_CMD_INIT_TENSOR, rpc_msg_init_tensor_req{ t }, "init_tensor");
    case 4:
        return frame(
            RPC_CMD_SET_TENSOR_HASH, rpc_msg_set_tensor_hash_req{ t, offset, dice_.next() }, "set_tensor_hash", 1);
    case 5: {
        rpc_msg_get_alloc_size_req request = {};
        request.tensor = t;
        request.srcs[0] = u;
        if (dice_.one_in(2)) {
            request.tensor.op = GGML_OP_SQR;
        } else {
            request.srcs[0].id = 0;
        }
        return frame(RPC_CMD_GET_ALLOC_SIZE, request, "get_alloc_size", 8);
    }
    default: {
        const size_t n = (size_t) std::min<uint64_t>(size, 4096);
        std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + n);
        rpc_msg_set_tensor_header header = { t, (uint8_t) dice_.below(2), offset };
        memcpy(message.data(), &header, sizeof(header));
        for (size_t i = sizeof(header); i < message.size(); i++) {
            message[i] = (uint8_t) dice_.next();
        }
        return frame(RPC_CMD_SET_TENSOR, message.data(), message.size(), "set_tensor", 0);
    }
    }
}

// All of a tensor as half floats, to it and from it, and between two servers, which was never agreed on
void rpc_session::half_rows() {
    const buffer b = some_buffer();
    rpc_tensor t = plain_tensor(dice_, b.handle, b.base + 32 * dice_.below((b.size - 32768) / 32));
    const uint64_t rows = size_of(t) / 4 / t.ne[0];
    uint64_t offset = 0, size = 2 * rows * (t.ne[0] + 1);
    std::vector<uint16_t> words(size / 2);
    for (size_t i = 0; i < words.size(); i++) {
        words[i] = (uint16_t) (i % (t.ne[0] + 1) == 0 ? dice_.below(RPC_HALF_MAX_EXPONENT + 1) : dice_.next());
    }
    valid = extended;
    if (hurt()) {
        valid = false;
        switch (dice_.below(3)) {
        case 0:
            damage_tensor(dice_, t, odd(), { t.id });
            break;
        case 1:
            (dice_.one_in(2) ? offset : size) = odd();
            break;
        default:
            words[dice_.below(words.size())] = (uint16_t) odd();
            break;
        }
    }
    switch (dice_.below(named ? 3 : 4)) {
    case 0:
        return frame(RPC_CMD_GET_TENSOR_F16, rpc_msg_get_tensor_req{ t, offset, size }, "get_tensor_f16", size);
    case 1: {
        std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + words.size() * sizeof(uint16_t));
        rpc_msg_set_tensor_header header = { t, 0, offset };
        memcpy(message.data(), &header, sizeof(header));
        memcpy(message.data() + sizeof(header), words.data(), words.size() * sizeof(uint16_t));
        return frame(RPC_CMD_SET_TENSOR_F16, message.data(), message.size(), "set_tensor_f16", 0);
    }
    case 2:
        valid = false;
        return frame(RPC_CMD_PUSH_TENSOR_F16,
            rpc_msg_push_tensor_req{ t, offset, size, odd(), (uint32_t) dice_.below(3), 0 }, "push_tensor_f16");
    default:
        valid = false;
        return frame(RPC_CMD_TAKE_TENSOR_F16, rpc_msg_take_tensor_req{ t, offset, size, odd() }, "take_tensor_f16");
    }
}
