// What is read: values, layouts, names, the weights index.
#include "check.h"
#include "layout.h"
#include "names.h"
#include "operations.h"
#include "protocol.h"
#include "weights_index.h"

using namespace mesh;

TEST(a_reader_ends_where_its_bytes_end) {
    const blob bytes = { 1, 0, 0, 0, 2 };
    reader in(bytes);
    uint32_t value;
    in.take(value);
    CHECK(value == 1 && in.size() == 1);
    CHECK(!thrown_by([&] { in.end(); }).empty());
    CHECK(!thrown_by([&] { in.take(value); }).empty());
    CHECK(in.bytes(1)[0] == 2);
    in.end();
}

TEST(a_body_is_read_as_it_was_written) {
    wire_tensor tensor;
    tensor.offset = 1ull << 40;
    tensor.ne[3] = 7;
    tensor.parameters[15] = -3;
    set_name(tensor.name, "a name that is far too long for the place that it has, as ggml's own are never");
    writer out;
    tensor.put(out);
    CHECK(out.data.size() == wire_tensor::bytes);
    reader in(out.data);
    const wire_tensor same = wire_tensor::take(in);
    in.end();
    CHECK(same.offset == tensor.offset && same.ne[3] == 7 && same.parameters[15] == -3);
    CHECK(name_of(same.name).size() == 63);
}

TEST(each_message_is_for_one_side_and_has_limits) {
    uint32_t least;
    uint32_t most;
    CHECK(body_limits(static_cast<uint16_t>(message::write), sender::head, least, most) && least == 16);
    CHECK(most == 16 + PIECE_BYTES);
    CHECK(!body_limits(static_cast<uint16_t>(message::write), sender::worker, least, most));
    CHECK(!body_limits(static_cast<uint16_t>(message::data), sender::head, least, most));
    CHECK(!body_limits(static_cast<uint16_t>(message::write), sender::neighbour, least, most));
    CHECK(!body_limits(0, sender::head, least, most));
}

TEST(operations_and_types_are_found_by_name) {
    CHECK(all_operations_have_checks());
    uint32_t known = 0;
    for (uint32_t i = 0; i < OPERATION_COUNT; i++) {
        ggml_op op;
        if (operation_of_number(i, op)) {
            known++;
            CHECK(std::string(ggml_op_name(op)) == OPERATIONS[i].name && number_of_operation(op) == i);
        }
    }
    CHECK(known > OPERATION_COUNT - 8); // a release may lack a few
    ggml_type type;
    CHECK(type_of_number(number_of_type(GGML_TYPE_Q4_1), type) && type == GGML_TYPE_Q4_1);
    CHECK(number_of_type(GGML_TYPE_Q8_K) == NO_NUMBER);
    CHECK(number_of_operation(GGML_OP_MAP_CUSTOM1) == NO_NUMBER);
    CHECK(!type_of_number(TYPE_COUNT, type) && !type_of_number(NO_NUMBER, type));
    int32_t kind = GGML_UNARY_OP_SILU;
    CHECK(kind_to_wire(GGML_OP_UNARY, kind) && std::string(UNARY_NAMES[kind]) == "SILU");
    CHECK(kind_from_wire(GGML_OP_UNARY, kind) && kind == GGML_UNARY_OP_SILU);
    kind = 1000;
    CHECK(!kind_from_wire(GGML_OP_GLU, kind));
}

TEST(layouts_that_no_tensor_has_are_refused) {
    const auto why = [](ggml_type type, std::vector<uint32_t> ne, std::vector<uint64_t> nb) {
        uint32_t sizes[4];
        uint64_t strides[4];
        std::copy(ne.begin(), ne.end(), sizes);
        std::copy(nb.begin(), nb.end(), strides);
        return thrown_by([&] { check_layout(type, sizes, strides); });
    };
    CHECK(why(GGML_TYPE_F32, { 4, 2, 1, 1 }, { 4, 16, 32, 32 }).empty());
    CHECK(why(GGML_TYPE_F32, { 4, 2, 1, 1 }, { 4, 16, ~0ull, ~0ull }).empty()); // strides that are never taken
    CHECK(!why(GGML_TYPE_Q4_0, { 33, 1, 1, 1 }, { 18, 18, 18, 18 }).empty());
    CHECK(!why(GGML_TYPE_Q4_0, { 64, 1, 1, 1 }, { 2, 36, 36, 36 }).empty());
    CHECK(!why(GGML_TYPE_F32, { 4, 2, 1, 1 }, { 4, 17, 32, 32 }).empty());
    CHECK(!why(GGML_TYPE_F32, { 4, 2, 1, 1 }, { 4, ~3ull, 32, 32 }).empty());
    CHECK(!why(GGML_TYPE_F32, { ~0u, 1, 1, 1 }, { 4, 4, 4, 4 }).empty());
    CHECK(!why(GGML_TYPE_F32, { 1 << 20, 1 << 20, 1 << 20, 1 }, { 4, 4, 4, 4 }).empty());
    const uint32_t empty[4] = { 0, 5, 5, 5 };
    const uint64_t strides[4] = { 4, 4, 4, 4 };
    CHECK(check_layout(GGML_TYPE_F32, empty, strides).span == 0);
}

TEST(an_index_that_breaks_a_rule_is_refused_with_its_line) {
    const std::string first = "meshd-weights 1\n";
    const std::string file = "file 0 -1 100 1 -2 7\n";
    const std::string hash(64, 'a');
    const auto why = [&](const std::string & text) { return thrown_by([&] { weights_index index(text); }); };
    weights_index index(first + file + "tensor 0 0 40 8 " + hash + " a name\nend\n");
    CHECK(index.at(0, 40) != nullptr && index.at(0, 40)->name == "a name" && index.at(0, 41) == nullptr);
    CHECK(index.with_hash(index.tensors[0].hash).size() == 1);
    CHECK(why("") == "the last line is not `end`");
    CHECK(why("meshd-weights 2\nend\n").find("line 1") == 0);
    CHECK(why(first + "file 1 -1 100 1 -2 7\nend\n").find("line 2: files are numbered") == 0);
    CHECK(why(first + "file 0 1 100 1 -2 7\nend\n").find("line 2") == 0);
    CHECK(why(first + file + "tensor 1 0 40 8 " + hash + " x\nend\n").find("line 3: there is no file 1") == 0);
    CHECK(why(first + file + "tensor 0 0 93 8 " + hash + " x\nend\n").find("line 3: tensor `x` ends behind") == 0);
    CHECK(why(first + file + "tensor 0 0 18446744073709551615 8 " + hash + " x\nend\n").find("line 3") == 0);
    CHECK(why(first + file + "tensor 0 0 40 8 " + hash.substr(1) + " x\nend\n").find("line 3") == 0);
    CHECK(why(first + "end\nend\n").find("line 3: there is more") == 0);
}
