// What two mesh-servers on different machines exchange, and somebody between them who changes it.
#include "hand.h"
#include "libcrypto.h"
#include "neighbours.h"
#include "turns.h"

#include <sys/socket.h>
#include <unistd.h>

using namespace mesh;

static std::shared_ptr<sealing_keys> keys_of(uint8_t sending, uint8_t receiving) {
    auto keys = std::make_shared<sealing_keys>();
    keys->sending.fill(sending);
    keys->receiving.fill(receiving);
    return keys;
}

// Two workers on two machines: 4 is the first one's name for the second, 7 the second one's for the first
struct two_apart {
    explicit two_apart(const socket_pair & pair = socket_pair()) :
        first({ { 4, pair.ends[0], true, keys_of(1, 2) } }), second({ { 7, pair.ends[1], true, keys_of(2, 1) } }) {}

    neighbours first;
    neighbours second;
};

TEST(what_is_sealed_is_opened_in_order_both_ways) {
    CHECK(can_seal());
    two_apart them;
    for (uint8_t i = 0; i < 50; i++) {
        them.first.push(4, i, blob(i, i));
        them.second.push(7, 100u + i, { i });
    }
    for (uint8_t i = 0; i < 50; i++) {
        CHECK(them.second.take(7, i, i) == blob(i, i));
        CHECK(them.first.take(4, 100u + i, 1) == blob{ i });
    }
}

TEST(sealed_pieces_of_any_size_arrive) {
    two_apart them;
    for (const size_t size : { size_t(0), RECORD_BYTES - 25, RECORD_BYTES - 24, RECORD_BYTES - 23, RECORD_BYTES,
             3 * RECORD_BYTES + 5, size_t(PIECE_BYTES) }) {
        blob data(size);
        for (size_t i = 0; i < size; i++) {
            data[i] = static_cast<uint8_t>(i * 7 + i / 251);
        }
        them.first.push(4, size, data);
        CHECK(them.second.take(7, size, static_cast<uint32_t>(size)) == data);
        if (size <= SUMMAND_BYTES) {
            them.second.push_summand(7, size, data);
            CHECK(them.first.take_summand(4, size) == data);
        }
    }
}

TEST(sealed_summands_arrive_in_order_whoever_reads_them) {
    two_apart them;
    add_up_in_turns(them.first, 4, them.second, 7);
}

TEST(two_that_seal_much_for_each_other_do_not_wait_for_each_other) {
    const socket_pair pair;
    const int little = 8 * 1024; // so that records are sent in parts
    for (const int one : pair.ends) {
        CHECK(setsockopt(one, SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    }
    two_apart them(pair);
    for (uint8_t i = 0; i < 6; i++) {
        them.first.push(4, i, blob(PIECE_BYTES, i));
        them.first.push(4, i, blob(i, i)); // which waits behind it
        them.second.push(7, i, blob(PIECE_BYTES, uint8_t(i + 1)));
    }
    for (uint8_t i = 0; i < 6; i++) {
        CHECK(them.first.take(4, i, PIECE_BYTES) == blob(PIECE_BYTES, uint8_t(i + 1)));
        CHECK(them.second.take(7, i, PIECE_BYTES) == blob(PIECE_BYTES, i));
        CHECK(them.second.take(7, i, i) == blob(i, i));
    }
}

// The records that a worker sends for these texts
static std::vector<std::string> records_of(const std::vector<std::string> & texts, uint8_t sending = 1) {
    const socket_pair pair;
    const auto sealed = make_sealed(*keys_of(sending, 9));
    std::vector<std::string> records;
    for (const auto & text : texts) {
        CHECK(sealed->send_now(pair.ends[0], text.data(), text.size(), nullptr, 0) == text.size());
        std::string record(text.size() + 100, 0);
        record.resize(static_cast<size_t>(recv(pair.ends[1], &record[0], record.size(), 0)));
        records.push_back(record);
    }
    close(pair.ends[0]);
    close(pair.ends[1]);
    return records;
}

// What the other worker makes of these bytes, then the end: texts, and why it goes on with none
static std::string opened(const std::string & bytes) {
    const socket_pair pair;
    CHECK(send(pair.ends[0], bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    close(pair.ends[0]);
    const auto opens = make_sealed(*keys_of(9, 1));
    std::string all;
    const std::string why = thrown_by([&] {
        char some[7]; // less than a record has
        for (ssize_t n; (n = opens->receive(pair.ends[1], some, sizeof some, 0)) > 0;) {
            all.append(some, static_cast<size_t>(n));
        }
    });
    close(pair.ends[1]);
    return why.empty() ? all : all + "! " + why;
}

static const char CHANGED[] = "a record is not what the other worker has sent";

TEST(what_is_sealed_can_neither_be_read_nor_is_it_twice_the_same) {
    const auto records = records_of({ "twelve bytes", "twelve bytes" });
    CHECK(opened(records[0] + records[1]) == "twelve bytestwelve bytes");
    CHECK(records[0].size() == 4 + 12 + 16);
    CHECK(records[0].find("twelve") == std::string::npos);
    CHECK(records[0].substr(4, 12) != records[1].substr(4, 12));
    CHECK(records_of({ "twelve bytes" }) == std::vector<std::string>{ records[0] });
    CHECK(records_of({ "twelve bytes" }, 2)[0].substr(4) != records[0].substr(4));
}

TEST(a_record_is_as_the_standard_says) {
    // ChaCha20-Poly1305 of RFC 8439 with a key of ones, nonce 0 and the associated data 05 00 00 00, by another
    // implementation (Python's cryptography)
    const unsigned char wanted[] = { 0x05, 0x00, 0x00, 0x00, 0x69, 0x42, 0x21, 0xbd, 0x81, 0x4b, 0xd7, 0xba, 0x00, 0xea,
        0x75, 0x85, 0xd6, 0x62, 0xde, 0x25, 0x07, 0x15, 0x02, 0xe4, 0xd9 };
    CHECK(records_of({ "hello" })[0] == std::string(reinterpret_cast<const char *>(wanted), sizeof wanted));
}

TEST(a_changed_record_ends_the_connection) {
    const auto records = records_of({ "one", "another" });
    for (size_t bit = 0; bit < 8 * records[1].size(); bit++) {
        std::string other = records[1];
        other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << (bit % 8)));
        const std::string found = opened(records[0] + other + std::string(other.size(), 0));
        CHECK(found.rfind("one!", 0) == 0); // a larger size wants more than there is, or none may have it
    }
    std::string other = records[1];
    other.back() = static_cast<char>(other.back() ^ 1);
    CHECK(opened(records[0] + other) == std::string("one! ") + CHANGED);
}

TEST(a_record_that_comes_again_or_too_early_or_not_at_all_ends_the_connection) {
    const auto records = records_of({ "one", "two", "three" });
    CHECK(opened(records[0] + records[0]) == std::string("one! ") + CHANGED);
    CHECK(opened(records[1] + records[0]) == std::string("! ") + CHANGED);
    CHECK(opened(records[0] + records[2]) == std::string("one! ") + CHANGED);
    CHECK(opened(records_of({ "mine" }, 9)[0]) == std::string("! ") + CHANGED); // its own, sent back
}

TEST(half_a_record_is_none) {
    const auto records = records_of({ "one", "two" });
    for (size_t size = 1; size < records[1].size(); size++) {
        CHECK(opened(records[0] + records[1].substr(0, size)) == "one! the connection ended within a record");
    }
    CHECK(opened(records[0]) == "one");
}

static std::string sized(uint32_t size) {
    writer out;
    out.put(size);
    return std::string(out.data.begin(), out.data.end());
}

TEST(a_record_has_a_size_within_limits) {
    CHECK(opened(sized(0)) == "! a record cannot have 0 bytes");
    CHECK(opened(sized(RECORD_BYTES + 1)) == "! a record cannot have 65537 bytes");
    CHECK(opened(sized(~0u)) == "! a record cannot have 4294967295 bytes");
    const std::string largest(RECORD_BYTES, 'x');
    CHECK(opened(records_of({ largest })[0]) == largest);
}

TEST(a_neighbour_whose_record_is_changed_is_lost_and_told_so) {
    const socket_pair pair;
    neighbours one({ { 4, pair.ends[0], true, keys_of(1, 2) } });
    const std::string junk = sized(1) + std::string(17, 'x');
    CHECK(send(pair.ends[1], junk.data(), junk.size(), 0) == static_cast<ssize_t>(junk.size()));
    CHECK(thrown_by([&] { one.take(4, 1, 1); }) == std::string("lost neighbour 4: ") + CHANGED);
    char byte;
    CHECK(recv(pair.ends[1], &byte, 1, 0) == 0);
    close(pair.ends[1]);
}

TEST(what_is_within_a_record_is_checked_as_ever) {
    const socket_pair pair;
    neighbours one({ { 4, pair.ends[0], true, keys_of(1, 9) } });
    const auto sealed = make_sealed(*keys_of(9, 1));
    writer out;
    put_header(out, message::compute, 0, 16);
    CHECK(sealed->send_now(pair.ends[1], out.data.data(), out.data.size(), nullptr, 0) == out.data.size());
    CHECK(thrown_by([&] { one.take(4, 1, 1); }) == "lost neighbour 4: there is no message 9");
    close(pair.ends[1]);
}

TEST(a_library_that_is_not_there_or_is_another_one_is_passed_over) {
    CHECK(load_libcrypto({}) == nullptr);
    std::vector<const char *> names = { "libcrypto.so.0", "/dev/null", "libm.so.6" };
    CHECK(load_libcrypto(names) == nullptr);
    names.insert(names.end(), LIBCRYPTO_NAMES.begin(), LIBCRYPTO_NAMES.end());
    const auto found = load_libcrypto(names);
    CHECK(found != nullptr);
    CHECK(found->chacha20_poly1305() != nullptr);
}
