// Frames of the hostile client that ask for something, allocate, load, or concern other servers.
#include "rpc_session.h"
#include "rpc_wire.h"

#include <algorithm>
#include <cstring>

void rpc_session::query() {
    uint32_t device = 0;
    if (hurt()) {
        device = (uint32_t) odd();
        valid = false;
    }
    switch (dice_.below(5)) {
    case 0:
        return frame(RPC_CMD_DEVICE_COUNT, nullptr, 0, "device_count", 4);
    case 1:
        return frame(RPC_CMD_GET_ALIGNMENT, device, "get_alignment", 8);
    case 2:
        return frame(RPC_CMD_GET_MAX_SIZE, device, "get_max_size", 8);
    case 3:
        return frame(RPC_CMD_GET_DEVICE_MEMORY, device, "get_device_memory", 16);
    default:
        valid = false;
        return frame(RPC_CMD_GRAPH_RECOMPUTE, device, "graph_recompute", 0);
    }
}

// A session that has named itself would wait in TAKE_TENSOR for data that do not come
void rpc_session::peers() {
    const buffer b = some_buffer();
    rpc_tensor t = plain_tensor(dice_, b.handle, b.base);
    uint64_t offset = 0, size = size_of(t), number = dice_.below(3);
    if (hurt()) {
        damage_tensor(dice_, t, odd(), { t.id });
        (dice_.one_in(2) ? offset : size) = odd();
        number = odd();
    }
    valid = extended;
    switch (dice_.below(4)) {
    case 0:
        return frame(RPC_CMD_PEER_CHECK, rpc_msg_peer_check_req{ (uint32_t) number, 0, {} }, "peer_check", 1);
    case 1:
        valid = valid && !named;
        named = true;
        return frame(RPC_CMD_PEER_SESSION, rpc_msg_peer_session_req{}, "peer_session");
    case 2:
        valid = false; // nothing was agreed on
        return frame(RPC_CMD_PUSH_TENSOR, rpc_msg_push_tensor_req{ t, offset, size, odd(), (uint32_t) number, 0 },
            "push_tensor");
    default:
        if (named) {
            return query();
        }
        valid = false;
        return frame(RPC_CMD_TAKE_TENSOR, rpc_msg_take_tensor_req{ t, offset, size, odd() }, "take_tensor");
    }
}

void rpc_session::memory() {
    uint64_t handle = some_buffer().handle;
    if (hurt()) {
        handle = odd();
        valid = false;
    }
    switch (dice_.below(damaging ? 5 : 4)) {
    case 4: {
        uint64_t any = odd();
        if (any > own_handle && any % RPC_HANDLE_SPACE == 0) {
            any++; // a good one that comes up again later would be refused then
        }
        rpc_msg_alloc_buffer_as_req request = { 0, 0, 1 + dice_.below(1 << 16), any };
        valid = false;
        return frame(RPC_CMD_ALLOC_BUFFER_AS, request, "alloc_buffer_as, any handle");
    }
    case 0: {
        rpc_msg_buffer_clear_req request = { handle, (uint8_t) dice_.next() };
        return frame(RPC_CMD_BUFFER_CLEAR, request, "buffer_clear");
    }
    case 1: {
        if (buffers.size() < 2 || !valid) {
            return query();
        }
        rpc_msg_free_buffer_req request = { handle };
        buffers.erase(
            std::find_if(buffers.begin(), buffers.end(), [&](const buffer & b) { return b.handle == handle; }));
        return frame(RPC_CMD_FREE_BUFFER, request, "free_buffer");
    }
    case 2: {
        rpc_msg_alloc_buffer_req request = { 0, 1 + dice_.below(1 << 16) };
        if (!valid) {
            damage(&request, sizeof(request));
        }
        return frame(RPC_CMD_ALLOC_BUFFER, request, "alloc_buffer, not used");
    }
    default: {
        rpc_msg_buffer_get_base_req request = { handle };
        return frame(RPC_CMD_BUFFER_GET_BASE, request, "buffer_get_base again", 8);
    }
    }
}

void rpc_session::load() {
    std::vector<uint8_t> message(sizeof(rpc_load_header) + dice_.within(1, 4) * sizeof(rpc_load_tensor));
    rpc_load_header header = { (uint32_t) ((message.size() - sizeof(header)) / sizeof(rpc_load_tensor)), 0 };
    for (uint32_t i = 0; i < header.n_tensors; i++) {
        const buffer & b = some_buffer();
        rpc_load_tensor t = {};
        t.buffer = b.handle;
        t.data = b.base;
        t.type = GGML_TYPE_Q4_0;
        t.ne[0] = 32;
        t.ne[1] = t.ne[2] = t.ne[3] = 2;
        t.size = 8 * 18;
        memcpy(message.data() + sizeof(header) + i * sizeof(t), &t, sizeof(t));
    }
    memcpy(message.data(), &header, sizeof(header));
    if (hurt()) {
        damage(message.data(), message.size());
    }
    valid = false; // this server has no files, and says so
    frame(RPC_CMD_SET_TENSOR_GGUF, message.data(), message.size(), "set_tensor_gguf", 0);
}
