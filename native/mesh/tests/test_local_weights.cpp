// What a worker reads from its files, where those change meanwhile.
#include "hand.h"
#include "late_device.h"
#include "local_weights.h"

#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

using namespace mesh;

static constexpr uint64_t SIZE = 64;

// A file of ones, and an index of it as one tensor
class ones_file {
public:
    explicit ones_file(uint64_t size = SIZE) {
        char name[] = "/tmp/mesh-tests-XXXXXX";
        descriptor = mkstemp(name);
        unlink(name);
        rewrite(blob(size, 1));
    }
    ~ones_file() { close(descriptor); }

    void rewrite(const blob & bytes) {
        struct stat is = {};
        const std::string size = std::to_string(bytes.size());
        CHECK(pwrite(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
        CHECK(fstat(descriptor, &is) == 0);
#ifdef __APPLE__
        const timespec changed = is.st_mtimespec;
        const timespec noted = is.st_ctimespec;
#else
        const timespec changed = is.st_mtim;
        const timespec noted = is.st_ctim;
#endif
        const auto ns = [](const timespec & at) { return std::to_string(at.tv_sec * 1000000000ll + at.tv_nsec); };
        index = weights_index("meshd-weights 1\nfile 0 " + std::to_string(descriptor) + " " + size + " " + ns(changed) +
                              " " + ns(noted) + " " + std::to_string(is.st_ino) + "\ntensor 0 0 0 " + size + " " +
                              std::string(64, '0') + " one\nend\n");
    }

    weights_index index;
    int descriptor;
};

static int to_be_changed = -1; // while its bytes are on their way

static void (*set_at_first)(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) = nullptr;

static void set_and_change(
    ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    set_at_first(buffer, tensor, data, offset, size);
    if (to_be_changed >= 0) {
        CHECK(ftruncate(to_be_changed, SIZE / 2) == 0);
    }
}

// What becomes of the target, which has the old content, and what is said of it
static std::pair<load_result, blob> loaded(bool changes) {
    const ones_file file;
    late_device & device = *new late_device();
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(&device.memory, SIZE));
    set_at_first = buffer->iface.set_tensor;
    buffer->iface.set_tensor = set_and_change;
    to_be_changed = changes ? file.descriptor : -1;
    std::vector<wanted_weights> wanted(1);
    wanted[0].target = { buffer.get(), static_cast<uint8_t *>(ggml_backend_buffer_get_base(buffer.get())) };
    wanted[0].size = SIZE;
    progress doing;
    local_weights(file.index).fill(wanted, doing);
    const std::vector<uint8_t> bytes = device.last_buffer();
    return { wanted[0].result, blob(bytes.begin(), bytes.end()) };
}

// A head may read it: what is there is not what it has named
TEST(bytes_of_a_file_that_changes_while_it_is_read_do_not_stay) {
    const auto kept = loaded(false);
    CHECK(kept.first == load_result::loaded && kept.second == blob(SIZE, 1));
    const auto changed = loaded(true);
    CHECK(changed.first == load_result::file_changed && changed.second == blob(SIZE, 0));
}

// Pieces of a file whose bytes count from 0
static std::pair<load_result, blob> loaded_parts(wanted_part part, bool changes = false) {
    ones_file file;
    blob counted(SIZE);
    for (uint8_t i = 0; i < SIZE; i++) {
        counted[i] = i;
    }
    file.rewrite(counted);
    late_device & device = *new late_device();
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(&device.memory, SIZE));
    ggml_backend_buffer_clear(buffer.get(), 0);
    set_at_first = buffer->iface.set_tensor;
    buffer->iface.set_tensor = set_and_change;
    to_be_changed = changes ? file.descriptor : -1;
    part.whole.target = { buffer.get(), static_cast<uint8_t *>(ggml_backend_buffer_get_base(buffer.get())) };
    part.whole.size = SIZE;
    progress doing;
    local_weights(file.index).fill(part, doing);
    const std::vector<uint8_t> bytes = device.last_buffer();
    return { part.whole.result, blob(bytes.begin(), bytes.begin() + 12) };
}

static wanted_part parts(uint64_t first, uint64_t piece, uint64_t count, uint64_t stride, uint64_t file_stride) {
    wanted_part part;
    part.first = first;
    part.piece = piece;
    part.count = count;
    part.stride = stride;
    part.file_stride = file_stride;
    return part;
}

TEST(parts_of_a_tensor_are_read_from_where_they_lie) {
    const blob packed = { 2, 3, 12, 13, 22, 23, 32, 33, 42, 43, 0, 0 };
    CHECK(loaded_parts(parts(2, 2, 5, 2, 10)).second == packed);
    const blob spread = { 4, 0, 0, 24, 0, 0, 44, 0, 0, 0, 0, 0 };
    CHECK(loaded_parts(parts(4, 1, 3, 3, 20)).second == spread);
    const blob one = { 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61 };
    CHECK(loaded_parts(parts(50, 14, 1, 14, 14)).second == one);
    // of a single piece no distance counts: nothing is held for it
    CHECK(loaded_parts(parts(50, 14, 1, UINT64_MAX, UINT64_MAX)).second == one);
}

// Half of a matrix by rows is one piece
TEST(a_long_piece_is_held_in_parts_on_its_way) {
    constexpr uint64_t LONG = 9 * 1024 * 1024 + 5;
    constexpr uint64_t FIRST = 3;
    constexpr uint64_t APART = LONG + 100;
    ones_file file(2 * APART);
    blob counted(2 * APART);
    for (uint64_t i = 0; i < counted.size(); i++) {
        counted[i] = static_cast<uint8_t>(i % 251);
    }
    file.rewrite(counted);
    late_device & device = *new late_device();
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(&device.memory, 2 * LONG));
    wanted_part part = parts(FIRST, LONG, 2, LONG, APART);
    part.whole.target = { buffer.get(), static_cast<uint8_t *>(ggml_backend_buffer_get_base(buffer.get())) };
    part.whole.size = counted.size();
    progress doing;
    local_weights(file.index).fill(part, doing);
    CHECK(part.whole.result == load_result::loaded && doing.steps == 6);
    blob wanted(counted.begin() + FIRST, counted.begin() + FIRST + LONG);
    wanted.insert(wanted.end(), counted.begin() + FIRST + APART, counted.begin() + FIRST + APART + LONG);
    const std::vector<uint8_t> bytes = device.last_buffer();
    CHECK(blob(bytes.begin(), bytes.end()) == wanted);
}

TEST(parts_of_a_file_that_changes_while_it_is_read_do_not_stay) {
    const auto changed = loaded_parts(parts(0, 2, 5, 2, 10), true);
    CHECK(changed.first == load_result::file_changed && changed.second == blob(12, 0));
}

TEST(parts_of_weights_that_lie_outside_are_refused) {
    const auto why = [](const std::function<void(wire_load_part &)> & spoil) {
        wire_load_part part;
        part.buffer = 1;
        part.whole = 1000;
        part.piece = 10;
        part.count = 4;
        part.stride = 10;
        part.file_stride = 100;
        spoil(part);
        writer out;
        part.put(out);
        return hand().refused(load_parts_body(), std::string(out.data.begin(), out.data.end()));
    };
    const std::vector<std::function<void(wire_load_part &)>> all = {
        [](wire_load_part & p) { p.offset = 4096 - 39; },
        [](wire_load_part & p) { p.offset = UINT64_MAX; },
        [](wire_load_part & p) { p.first = 691; },
        [](wire_load_part & p) { p.first = UINT64_MAX - 5; },
        [](wire_load_part & p) { p.stride = 9; },
        [](wire_load_part & p) { p.file_stride = 9; },
        [](wire_load_part & p) { p.piece = 0; },
        [](wire_load_part & p) { p.piece = UINT64_MAX; },
        [](wire_load_part & p) { p.count = 0; },
        [](wire_load_part & p) { p.count = UINT64_MAX; },
        [](wire_load_part & p) { p.stride = p.file_stride = UINT64_MAX / 3 + 1; },
    };
    for (const auto & spoil : all) {
        CHECK(why(spoil) == "LOAD_PARTS of more than there is");
    }
    CHECK(why([](wire_load_part & p) { p.type = 1000; }).find("LOAD_PARTS of a type") == 0);
    CHECK(!why([](wire_load_part & p) { p.buffer = 2; }).empty());
}
