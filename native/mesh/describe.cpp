#include "describe.h"

#include "names.h"
#include "release.h"

#include "ggml-backend-impl.h"

#include <vector>

namespace mesh {

static std::string list(const std::vector<std::string> & names) {
    std::string text;
    for (const auto & name : names) {
        text += (text.empty() ? "\"" : ", \"") + name + "\"";
    }
    return "[" + text + "]";
}

std::string describe(const char * what) {
    std::vector<std::string> operations;
    for (uint32_t i = 0; i < OPERATION_COUNT; i++) {
        ggml_op op;
        if (operation_of_number(i, op)) {
            operations.emplace_back(OPERATIONS[i].name);
        }
    }
    std::vector<std::string> types;
    for (uint32_t i = 0; i < TYPE_COUNT; i++) {
        ggml_type type;
        if (type_of_number(i, type)) {
            types.emplace_back(TYPE_NAMES[i]);
        }
    }
    return std::string("{\"program\": \"") + what + "\", \"protocol\": " + std::to_string(VERSION) + ", \"ggml\": \"" +
           ggml_release() + "\", \"backend_api\": " + std::to_string(GGML_BACKEND_API_VERSION) +
           ", \"operations\": " + list(operations) + ", \"types\": " + list(types) + "}";
}

} // namespace mesh
