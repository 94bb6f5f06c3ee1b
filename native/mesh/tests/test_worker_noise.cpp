// Whatever a worker says, in whatever order, harms nobody: valid answers and WELCOMEs, and what is left of them after
// some damage. The sanitizers are the judges.
#include "watched.h"
#include "welcoming.h"

using namespace mesh;

// Numbers that are the same in each run
class noise {
public:
    explicit noise(uint32_t seed) : state(seed * 2654435761u + 1) {}
    uint32_t below(uint32_t end) {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % end;
    }
    bool one_in(uint32_t chances) { return below(chances) == 0; }
    uint64_t odd() {
        const uint64_t values[] = { 0, 1, ~0ull, 1ull << below(64), below(300), 0x7fffffff };
        return values[below(6)];
    }

private:
    uint32_t state;
};

static constexpr size_t TARGETS = 6;
static constexpr size_t TARGET_BYTES = 48;

// What is left of an answer to one of the requests, or of PROGRESS or FAILED
static void put_some(noise & dice, writer & out) {
    static const message kinds[] = { message::data, message::data, message::data, message::progress, message::synced,
        message::loaded, message::allocated, message::welcome, message::failed, message::write };
    const message kind = kinds[dice.below(dice.one_in(8) ? 10 : 4)];
    const bool progress = kind == message::progress;
    size_t size = progress ? size_t{ progress_body::bytes } : TARGET_BYTES;
    uint64_t id = progress ? 0 : 2 + dice.below(TARGETS);
    if (dice.one_in(10)) {
        (dice.one_in(2) ? id : size) = dice.one_in(2) ? dice.odd() : dice.below(100);
    }
    const size_t start = out.data.size();
    put_header(out, kind, id, size);
    progress_body body;
    body.done = 1 + (dice.one_in(4) ? dice.odd() : 0);
    body.request = dice.one_in(4) ? dice.odd() : 0;
    body.seconds = static_cast<uint32_t>(dice.odd());
    body.waits = dice.one_in(4) ? static_cast<uint32_t>(dice.odd()) : 0;
    body.put(out);
    out.data.resize(start + wire_header::bytes + std::min<size_t>(size, 5000), 0);
    if (dice.one_in(12)) {
        out.data[start + dice.below(static_cast<uint32_t>(out.data.size() - start))] ^= 1 << dice.below(8);
    }
}

TEST(whatever_a_worker_answers_harms_nobody) {
    told parent;
    uint32_t answered = 0;
    for (uint32_t seed = 0; seed < 400; seed++) {
        noise dice(seed);
        watch all;
        watched_worker worker(all, 0);
        auto targets = std::make_unique<std::array<std::array<uint8_t, TARGET_BYTES>, TARGETS>>();
        for (auto & target : *targets) {
            CHECK(worker.link.ask(read_body(), message::data, target.data(), target.size()) != 0);
        }
        writer out;
        for (uint32_t n = 1 + dice.below(20); n > 0; n--) {
            put_some(dice, out);
        }
        for (size_t at = 0; at < out.data.size();) {
            try {
                at += worker.end.send_some(out.data.data() + at, out.data.size() - at);
            } catch (const lost &) {
                break; // refused already
            }
        }
        all.tick();
        worker.end.shut();
        worker.await_loss();
        CHECK(!worker.link.wait_all());
        answered += worker.link.wait(2) ? 1 : 0;
        targets.reset();
    }
    CHECK(answered == 0); // after a loss nothing counts as an answer
}

TEST(whatever_a_worker_welcomes_with_harms_nobody) {
    uint32_t refused = 0;
    for (uint32_t seed = 0; seed < 200; seed++) {
        noise dice(seed);
        welcome_words says;
        says.devices = 1 + dice.below(3);
        if (dice.one_in(4)) {
            says.operations.back() = dice.below(OPERATION_COUNT + 1);
        }
        blob bytes = says.bytes();
        for (uint32_t n = dice.below(3); n > 0; n--) {
            const uint64_t value = dice.odd();
            std::memcpy(bytes.data() + 4 * dice.below(static_cast<uint32_t>(bytes.size() / 4 - 1)), &value, 8);
        }
        bytes.resize(bytes.size() + (dice.one_in(8) ? dice.below(40) : 0), 0);
        bytes.resize(bytes.size() - (dice.one_in(8) ? dice.below(40) : 0));
        welcoming_worker worker(bytes);
        refused += thrown_by([&] { worker.open(10); }).empty() ? 0 : 1;
    }
    CHECK(refused > 20 && refused < 180);
}
