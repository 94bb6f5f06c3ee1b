#include "names.h"

#include <cstring>
#include <string>
#include <unordered_map>

namespace mesh {

// Both directions between the places in two lists of names.
class translation {
public:
    template <class Name> translation(const char * const * names, uint32_t count, int theirs, Name name) {
        std::unordered_map<std::string, uint32_t> places;
        for (uint32_t i = 0; i < count; i++) {
            places.emplace(names[i], i);
        }
        ours.assign(static_cast<size_t>(theirs), NO_NUMBER);
        back.assign(count, -1);
        for (int i = 0; i < theirs; i++) {
            const char * text = name(i);
            const auto found = text == nullptr ? places.end() : places.find(text);
            if (found != places.end()) {
                ours[static_cast<size_t>(i)] = found->second;
                back[found->second] = i;
            }
        }
    }

    uint32_t number(int value) const {
        return value < 0 || static_cast<size_t>(value) >= ours.size() ? NO_NUMBER : ours[static_cast<size_t>(value)];
    }
    int value(uint32_t number) const { return number < back.size() ? back[number] : -1; }

private:
    std::vector<uint32_t> ours;
    std::vector<int> back;
};

static const translation & operations() {
    static const translation all = [] {
        const char * names[OPERATION_COUNT];
        for (uint32_t i = 0; i < OPERATION_COUNT; i++) {
            names[i] = OPERATIONS[i].name;
        }
        return translation(
            names, OPERATION_COUNT, GGML_OP_COUNT, [](int op) { return ggml_op_name(static_cast<ggml_op>(op)); });
    }();
    return all;
}

static const translation & types() {
    static const translation all(
        TYPE_NAMES, TYPE_COUNT, GGML_TYPE_COUNT, [](int type) { return ggml_type_name(static_cast<ggml_type>(type)); });
    return all;
}

// nullptr: the first parameter of this operation is no kind
static const translation * kinds(ggml_op op) {
    static const translation unary(UNARY_NAMES, sizeof UNARY_NAMES / sizeof *UNARY_NAMES, GGML_UNARY_OP_COUNT,
        [](int kind) { return ggml_unary_op_name(static_cast<ggml_unary_op>(kind)); });
    static const translation glu(GLU_NAMES, sizeof GLU_NAMES / sizeof *GLU_NAMES, GGML_GLU_OP_COUNT,
        [](int kind) { return ggml_glu_op_name(static_cast<ggml_glu_op>(kind)); });
    return op == GGML_OP_UNARY ? &unary : op == GGML_OP_GLU ? &glu : nullptr;
}

uint32_t number_of_operation(ggml_op op) {
    return operations().number(op);
}

uint32_t number_of_type(ggml_type type) {
    return types().number(type);
}

bool operation_of_number(uint32_t number, ggml_op & op) {
    const int value = operations().value(number);
    op = static_cast<ggml_op>(value < 0 ? 0 : value);
    return value >= 0;
}

bool type_of_number(uint32_t number, ggml_type & type) {
    const int value = types().value(number);
    type = static_cast<ggml_type>(value < 0 ? 0 : value);
    return value >= 0;
}

bool kind_to_wire(ggml_op op, int32_t & kind) {
    const translation * known = kinds(op);
    if (known == nullptr) {
        return true;
    }
    const uint32_t number = known->number(kind);
    kind = number == NO_NUMBER ? 0 : static_cast<int32_t>(number);
    return number != NO_NUMBER;
}

bool kind_from_wire(ggml_op op, int32_t & kind) {
    const translation * known = kinds(op);
    if (known == nullptr) {
        return true;
    }
    const int value = kind < 0 ? -1 : known->value(static_cast<uint32_t>(kind));
    kind = value < 0 ? 0 : value;
    return value >= 0;
}

} // namespace mesh
