#include "client_sums.h"

#include "client.h"
#include "sum_form.h"

#include <iterator>

namespace mesh {

static bool is_on = true;
static auto chosen = sum_form::f32;

struct client_sums {
    std::vector<client_device *> devices;
};

void choose_sums(const std::string & form) {
    static constexpr const char * FORMS[] = { "f32", "f16", "q8" };
    const auto * found = std::find(std::begin(FORMS), std::end(FORMS), form);
    if (found != std::end(FORMS)) {
        chosen = static_cast<sum_form>(found - std::begin(FORMS));
    } else if (form == "off") {
        is_on = false;
    } else if (!form.empty()) {
        throw std::runtime_error("GGML_MESH_SUMS is `" + form + "`, none of f32, f16, q8 and off");
    }
}

void * open_sums(ggml_backend_t * backends, size_t count) {
    auto sums = std::make_unique<client_sums>();
    for (size_t i = 0; i < count && is_on; i++) {
        client_device * device = device_of(ggml_backend_get_default_buffer_type(backends[i]));
        if (device == nullptr || device->worker->place >= NEIGHBOURS) {
            return nullptr;
        }
        for (const client_device * other : sums->devices) {
            if (other->worker == device->worker || !are_neighbours(*other->worker, *device->worker)) {
                return nullptr;
            }
        }
        sums->devices.push_back(device);
    }
    return is_on ? sums.release() : nullptr;
}

void close_sums(void * sums) {
    delete static_cast<client_sums *>(sums);
}

// What workers can add in one SUM
static bool is_addable(const ggml_tensor * tensor) {
    const auto row = static_cast<uint64_t>(tensor->ne[0]);
    return tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor) && ggml_nbytes(tensor) <= SUM_BYTES &&
           row * sizeof(float) <= SUMMAND_BYTES && (chosen != sum_form::q8 || row % SUM_BLOCK == 0);
}

// Whether each tensor lies on the device of its place, and all have one size
static bool are_addable(const client_sums & sums, ggml_tensor ** tensors) {
    for (size_t i = 0; i < sums.devices.size(); i++) {
        const client_buffer * own = buffer_of(tensors[i]);
        if (own == nullptr || own->device != sums.devices[i] || !is_addable(tensors[i]) ||
            !ggml_are_same_shape(tensors[i], tensors[0])) {
            return false;
        }
    }
    return true;
}

// From now on the graphs of this worker are kept as with sums, and the one before this sum need not leave at once
static void note_sum(client_device & device) {
    std::lock_guard<std::mutex> lock(device.worker->link.order);
    device.worker->sums = true;
    device.worker->summed.insert(device.computed);
}

static sum_body body_of(const client_device & device, const ggml_tensor * tensor) {
    const remote_place where = place_of(tensor);
    sum_body body;
    body.place = device.worker->place;
    body.buffer = where.buffer;
    body.row = static_cast<uint32_t>(tensor->ne[0]);
    body.form = static_cast<uint32_t>(chosen);
    body.absent = (tensor->flags & GGML_TENSOR_FLAG_COMPUTE) == 0 ? 1 : 0;
    body.offset = where.offset;
    body.size = ggml_nbytes(tensor);
    return body;
}

bool compute_sum(void * context, ggml_tensor ** tensors) {
    const auto & sums = *static_cast<client_sums *>(context);
    if (sums.devices[0]->worker->check->is_going_on()) {
        return true; // nothing was computed
    }
    if (!are_addable(sums, tensors)) {
        return false;
    }
    std::vector<sum_part> parts;
    uint32_t members = 0;
    for (size_t i = 0; i < sums.devices.size(); i++) {
        client_device & device = *sums.devices[i];
        // before the lock: who does not read keeps nobody else waiting
        if (!device.worker->link.wait_for_room()) {
            return false;
        }
        note_sum(device);
        parts.push_back({ &device.worker->link, body_of(device, tensors[i]) });
        members |= 1u << device.worker->place;
    }
    const pair_order order;
    for (sum_part & part : parts) {
        part.body.members = members;
        part.body.token = order.token;
    }
    return connection::add_up(parts);
}

} // namespace mesh
