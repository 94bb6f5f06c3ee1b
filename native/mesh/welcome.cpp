#include "welcome.h"

#include "names.h"

namespace mesh {

// The numbers in a list of names that `has` finds
template <class Has> static std::vector<uint32_t> known(uint32_t count, Has has) {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < count; i++) {
        if (has(i)) {
            numbers.push_back(i);
        }
    }
    return numbers;
}

static wire_device describe(ggml_backend_dev_t device) {
    wire_device row;
    set_name(row.name, ggml_backend_dev_name(device));
    set_name(row.description, ggml_backend_dev_description(device));
    row.kind = static_cast<uint32_t>(ggml_backend_dev_type(device));
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    row.alignment = static_cast<uint32_t>(ggml_backend_buft_get_alignment(type));
    row.most_bytes = ggml_backend_buft_get_max_size(type);
    return row;
}

blob make_welcome(const std::vector<lent_device> & devices, const buffers & memory) {
    const auto operations = known(OPERATION_COUNT, [](uint32_t number) {
        ggml_op op;
        return operation_of_number(number, op);
    });
    const auto types = known(TYPE_COUNT, [](uint32_t number) {
        ggml_type type;
        return type_of_number(number, type);
    });
    welcome_body head_part;
    head_part.version = VERSION;
    head_part.device_count = static_cast<uint32_t>(devices.size());
    head_part.operation_count = static_cast<uint32_t>(operations.size());
    head_part.type_count = static_cast<uint32_t>(types.size());
    writer out;
    head_part.put(out);
    for (size_t i = 0; i < devices.size(); i++) {
        wire_device row = describe(ggml_backend_get_device(devices[i].backend));
        memory.memory(static_cast<uint32_t>(i), row.free_bytes, row.total_bytes);
        row.row_padding = devices[i].rule.row_padding;
        row.attention_copies = devices[i].rule.attention_copies ? 1 : 0;
        row.working_room = devices[i].rule.working_room ? 1 : 0;
        row.put(out);
    }
    out.put_bytes(operations.data(), operations.size() * sizeof operations[0]);
    out.put_bytes(types.data(), types.size() * sizeof types[0]);
    return std::move(out.data);
}

blob make_met(const std::vector<uint32_t> & neighbours) {
    writer out;
    out.put_bytes(neighbours.data(), neighbours.size() * sizeof neighbours[0]);
    return std::move(out.data);
}

} // namespace mesh
