#include "device_list.h"

#include "printable.h"

#include "ggml-backend.h"

namespace mesh {

static const char * kind_of(enum ggml_backend_dev_type type) {
    switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    case GGML_BACKEND_DEVICE_TYPE_ACCEL:
        return "accel";
    default:
        return "other";
    }
}

std::vector<std::string> list_devices() {
    std::vector<std::string> lines;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(ggml_backend_dev_get(i), &props);
        const std::string id = props.device_id != nullptr && *props.device_id != '\0' ? props.device_id : "-";
        lines.push_back(printable(std::string("device ") + props.name + " " + kind_of(props.type) + " " + id + " " +
                                  std::to_string(props.memory_total) + " " + std::to_string(props.memory_free) + " " +
                                  props.description));
    }
    return lines;
}

} // namespace mesh
