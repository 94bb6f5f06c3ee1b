// Workers that push to each other, and one that breaks rules.
#include "check.h"
#include "neighbours.h"
#include "report.h"
#include "served.h"
#include "turns.h"

#include <unistd.h>

using namespace mesh;

// Two workers: 4 is the first one's name for the second, 7 the second one's for the first
struct two_workers {
    explicit two_workers(const socket_pair & pair) : first({ { 4, pair.ends[0] } }), second({ { 7, pair.ends[1] } }) {}
    two_workers() : two_workers(socket_pair()) {}

    neighbours first;
    neighbours second;
};

static bool has(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

TEST(what_is_pushed_is_taken_in_order_both_ways) {
    two_workers them;
    CHECK(them.first.numbers() == std::vector<uint32_t>{ 4 });
    for (uint8_t i = 0; i < 50; i++) {
        them.first.push(4, i, blob(i, i));
        them.second.push(7, 100u + i, { i });
    }
    for (uint8_t i = 0; i < 50; i++) {
        CHECK(them.second.take(7, i, i) == blob(i, i));
        CHECK(them.first.take(4, 100u + i, 1) == blob{ i });
    }
    CHECK(has(thrown_by([&] { them.first.push(7, 1, {}); }), "no neighbour 7"));
    CHECK(has(thrown_by([&] { them.first.take(0, 1, 0); }), "no neighbour 0"));
}

TEST(two_that_push_much_to_each_other_do_not_wait_for_each_other) {
    two_workers them;
    // more than sockets hold, and not more than is read ahead
    for (uint64_t i = 0; i < 10; i++) {
        them.first.push(4, i, blob(PIECE_BYTES));
        them.second.push(7, i, blob(PIECE_BYTES));
    }
    for (uint64_t i = 0; i < 10; i++) {
        CHECK(them.first.take(4, i, PIECE_BYTES).size() == PIECE_BYTES);
        CHECK(them.second.take(7, i, PIECE_BYTES).size() == PIECE_BYTES);
    }
}

TEST(summands_arrive_in_order_whoever_reads_them) {
    two_workers them;
    add_up_in_turns(them.first, 4, them.second, 7);
}

TEST(who_waits_for_a_summand_is_interrupted_by_the_end_and_by_a_loss) {
    two_workers them;
    std::string taking;
    std::thread taker([&] { taking = thrown_by([&] { them.first.take_summand(4, 1); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1)); // so that it looks, or is about to
    them.first.end();
    taker.join();
    CHECK(taking == interrupted().what());
    CHECK(thrown_by([&] { them.second.take_summand(7, 1); }) == "lost neighbour 7: it ended");
}

TEST(bytes_are_counted_for_each_neighbour) {
    const socket_pair silent;
    const socket_pair loud;
    neighbours one({ { 0, silent.ends[0] }, { 1, loud.ends[0] } });
    neighbours other({ { 5, loud.ends[1] } });
    other.push(5, 1, { 1, 2, 3 });
    one.take(1, 1, 3);
    CHECK(one.received(1) == wire_header::bytes + pushed_body::bytes + 3);
    CHECK(one.received(0) == 0 && one.received(2) == 0);
    close(silent.ends[1]);
}

TEST(something_else_than_was_to_be_pushed_is_named) {
    two_workers them;
    them.first.push(4, 5, { 1, 2, 3 });
    them.first.push(4, 6, { 1, 2, 3 });
    CHECK(has(thrown_by([&] { them.second.take(7, 6, 3); }), "lost neighbour 7: it pushed something else"));
    CHECK(has(thrown_by([&] { them.second.take(7, 6, 4); }), "lost neighbour 7: it pushed something else"));
}

TEST(a_lost_neighbour_is_named_when_it_is_needed) {
    const socket_pair pair;
    neighbours one({ { 4, pair.ends[0] } });
    {
        neighbours other({ { 7, pair.ends[1] } });
        other.push(7, 1, { 9 });
        CHECK(one.take(4, 1, 1) == blob{ 9 });
    }
    CHECK(thrown_by([&] { one.take(4, 2, 1); }) == "lost neighbour 4: it ended");
    std::string why;
    while (why.empty()) { // the first ones may only be queued
        why = thrown_by([&] { one.push(4, 3, blob(PIECE_BYTES)); });
    }
    CHECK(why == "lost neighbour 4: it takes no more");
}

TEST(the_end_interrupts_who_waits) {
    two_workers them;
    std::string taking;
    std::thread taker([&] { taking = thrown_by([&] { them.first.take(4, 1, 1); }); });
    std::string pushing;
    std::thread pusher([&] {
        while (pushing.empty()) { // nobody takes: at some time there is no more room
            pushing = thrown_by([&] { them.first.push(4, 1, blob(PIECE_BYTES)); });
        }
    });
    them.first.end();
    taker.join();
    pusher.join();
    CHECK(taking == interrupted().what() && pushing == taking);
}

// What is reported while this is there
class reports {
public:
    reports() {
        CHECK(pipe(ends) == 0);
        open_report(ends[1]);
    }
    ~reports() {
        open_report(-1);
        close(ends[0]);
        close(ends[1]);
    }
    reports(const reports &) = delete;
    reports & operator=(const reports &) = delete;

    // Waits for so many lines
    std::string lines(size_t count) const {
        std::string text;
        for (size_t found = 0; found < count;) {
            char byte;
            CHECK(read(ends[0], &byte, 1) == 1);
            text += byte;
            found += byte == '\n' ? 1 : 0;
        }
        return text;
    }

private:
    int ends[2] = { -1, -1 };
};

TEST(what_passes_on_a_local_connection_is_reported) {
    const reports said;
    const socket_pair local;
    const socket_pair through_the_parent;
    neighbours one({ { 4, local.ends[0], true }, { 5, through_the_parent.ends[0] } });
    neighbours other({ { 7, local.ends[1] }, { 8, through_the_parent.ends[1] } });
    one.push(5, 1, { 1 });
    other.push(8, 1, { 1 });
    CHECK(one.take(5, 1, 1) == blob{ 1 });
    one.push(4, 1, { 1, 2, 3 });
    CHECK(said.lines(1) == "pushed 4 1 27\n");
    one.push(4, 2, {});
    CHECK(said.lines(1) == "pushed 4 2 51\n");
    other.push(7, 3, { 9 });
    other.push(7, 4, {});
    CHECK(said.lines(2) == "came 4 1 25\ncame 4 2 49\n");
}

// What comes of these bytes from a neighbour
static std::string refused(uint16_t kind, uint32_t size, size_t sent, uint16_t zero = 0) {
    const socket_pair pair;
    neighbours one({ { 2, pair.ends[0] } });
    wire_header header;
    header.kind = kind;
    header.size = size;
    header.zero = zero;
    writer out;
    header.put(out);
    out.data.resize(out.data.size() + sent, 0);
    CHECK(send(pair.ends[1], out.data.data(), out.data.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.data.size()));
    close(pair.ends[1]);
    return thrown_by([&] { one.take(2, 0, 4); });
}

TEST(a_neighbour_that_breaks_rules_is_lost) {
    const auto pushed = static_cast<uint16_t>(message::pushed);
    CHECK(refused(pushed, 12, 12).empty());
    CHECK(has(refused(pushed, 7, 7), "lost neighbour 2: message 192 cannot have 7 bytes"));
    CHECK(has(refused(pushed, ~0u, 0), "cannot have 4294967295 bytes"));
    CHECK(has(refused(pushed, PIECE_BYTES + 9, 0), "cannot have"));
    CHECK(has(refused(pushed, 12, 11), "ended within a message"));
    CHECK(has(refused(pushed, 12, 4), "ended within a message"));
    CHECK(has(refused(static_cast<uint16_t>(message::compute), 16, 16), "there is no message 9"));
    CHECK(has(refused(static_cast<uint16_t>(message::failed), 4, 4), "there is no message 255"));
    CHECK(has(refused(0, 0, 0), "there is no message 0"));
    CHECK(has(refused(pushed, 12, 12, 1), "a reserved field is not 0"));
    CHECK(has(refused(pushed, 12, 12, 0x8000), "a reserved field is not 0"));
}
