// Neighbours that are handed over while a mesh-server runs, and a parent that does it wrongly.
#include "hand.h"
#include "neighbour_arrivals.h"

#include <future>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace mesh;

static constexpr uint32_t NEIGHBOUR = 1;
static constexpr uint32_t COMPLETE = 2;
static constexpr uint32_t LOCAL_NEIGHBOUR = 3;
static constexpr uint32_t SEALED_NEIGHBOUR = 4;

// What a parent says, with these descriptors attached, which it closes
static void say_bytes(int socket, const std::string & bytes, const std::vector<int> & descriptors = {}) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
    iovec part = { const_cast<char *>(bytes.data()), bytes.size() };
    msghdr said = {};
    said.msg_iov = &part;
    said.msg_iovlen = 1;
    if (!descriptors.empty()) {
        said.msg_control = control;
        said.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
        cmsghdr * rights = CMSG_FIRSTHDR(&said);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
        std::memcpy(CMSG_DATA(rights), descriptors.data(), sizeof(int) * descriptors.size());
    }
    CHECK(sendmsg(socket, &said, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    for (const int one : descriptors) {
        close(one);
    }
}

static std::string words(uint32_t kind, uint32_t number) {
    writer out;
    out.put(kind);
    out.put(number);
    return std::string(out.data.begin(), out.data.end());
}

static void say(int socket, uint32_t kind, uint32_t number, const std::vector<int> & descriptors = {}) {
    say_bytes(socket, words(kind, number), descriptors);
}

static bool has_ended(int socket) {
    char byte;
    return recv(socket, &byte, 1, MSG_DONTWAIT) == 0;
}

// The neighbours of a mesh-server, and its parent's end
struct handed {
    explicit handed(const std::vector<neighbour_socket> & before = {}) :
        others(before, true), coming(pair.ends[1], others, [this](const std::string & why) { wrong.set_value(why); }) {}
    ~handed() { hang_up(); }

    void hang_up() {
        if (parent >= 0) {
            close(parent);
            parent = -1;
        }
    }
    std::string refusal() { return wrong.get_future().get(); }

    const socket_pair pair;
    int parent = pair.ends[0];
    std::promise<std::string> wrong;
    neighbours others;
    arrivals coming;
};

TEST(neighbours_are_handed_over_until_they_are_complete) {
    const socket_pair before;
    const socket_pair after;
    const socket_pair last;
    handed to({ { 5, before.ends[0] } });
    say(to.parent, NEIGHBOUR, 0, { after.ends[0] });
    const std::string split = words(NEIGHBOUR, 15); // as a stream may
    say_bytes(to.parent, split.substr(0, 3));
    say_bytes(to.parent, split.substr(3), { last.ends[0] });
    say(to.parent, COMPLETE, 0);
    CHECK(to.others.numbers() == std::vector<uint32_t>({ 0, 5, 15 }));
    neighbours other({ { 1, last.ends[1] } });
    to.others.push(15, 3, { 7 });
    CHECK(other.take(1, 3, 1) == blob{ 7 });
    close(before.ends[1]);
    close(after.ends[1]);
}

TEST(a_local_neighbour_is_one_as_the_others) {
    const socket_pair local;
    handed to;
    say(to.parent, LOCAL_NEIGHBOUR, 6, { local.ends[0] });
    say(to.parent, COMPLETE, 0);
    CHECK(to.others.numbers() == std::vector<uint32_t>{ 6 });
    neighbours other({ { 1, local.ends[1] } });
    to.others.push(6, 3, { 7 });
    CHECK(other.take(1, 3, 1) == blob{ 7 });
    other.push(1, 4, { 8 });
    CHECK(to.others.take(6, 4, 1) == blob{ 8 });
}

static const std::string FIRST_KEY(sealing_keys::BYTES, 'a');
static const std::string OTHER_KEY(sealing_keys::BYTES, 'b');

TEST(a_sealed_neighbour_comes_with_its_keys) {
    const socket_pair between;
    handed to;
    say_bytes(to.parent, words(SEALED_NEIGHBOUR, 6) + FIRST_KEY + OTHER_KEY, { between.ends[0] });
    say(to.parent, COMPLETE, 0);
    CHECK(to.others.numbers() == std::vector<uint32_t>{ 6 });
    auto keys = std::make_shared<sealing_keys>();
    keys->sending.fill('b');
    keys->receiving.fill('a');
    neighbours other({ { 1, between.ends[1], true, keys } });
    to.others.push(6, 3, { 7 });
    CHECK(other.take(1, 3, 1) == blob{ 7 });
    other.push(1, 4, { 8 });
    CHECK(to.others.take(6, 4, 1) == blob{ 8 });
}

TEST(keys_without_their_end_are_refused) {
    const socket_pair between;
    handed to;
    say_bytes(to.parent, words(SEALED_NEIGHBOUR, 6) + FIRST_KEY, { between.ends[0] });
    to.hang_up();
    CHECK(to.refusal() == "it ended within a message");
    CHECK(has_ended(between.ends[1]));
    close(between.ends[1]);
}

TEST(keys_without_a_connection_are_refused) {
    handed to;
    say_bytes(to.parent, words(SEALED_NEIGHBOUR, 6) + FIRST_KEY + OTHER_KEY);
    CHECK(to.refusal() == "message 4 has 0 descriptors instead of 1");
}

// A test of meshd runs this one where no libcrypto is found as well
TEST(keys_are_taken_by_a_program_that_can_seal) {
    const socket_pair between;
    handed to;
    say_bytes(to.parent, words(SEALED_NEIGHBOUR, 6) + FIRST_KEY + OTHER_KEY, { between.ends[0] });
    say(to.parent, COMPLETE, 0);
    if (can_seal()) {
        CHECK(to.others.numbers() == std::vector<uint32_t>{ 6 });
    } else {
        CHECK(to.refusal() == CANNOT_SEAL);
    }
    close(between.ends[1]);
}

TEST(the_end_says_that_neighbours_are_complete) {
    const socket_pair between;
    handed to;
    say(to.parent, NEIGHBOUR, 2, { between.ends[0] });
    to.hang_up();
    CHECK(to.others.numbers() == std::vector<uint32_t>{ 2 });
    close(between.ends[1]);
}

// Whether each descriptor of this process for that socket is closed when a program is started; there is at least one
static bool are_private(const struct stat & wanted) {
    bool found = false;
    for (int one = 3; one < 1024; one++) {
        struct stat is = {};
        if (fstat(one, &is) == 0 && is.st_ino == wanted.st_ino && is.st_dev == wanted.st_dev) {
            found = true;
            if (fcntl(one, F_GETFD) != FD_CLOEXEC) {
                return false;
            }
        }
    }
    return found;
}

TEST(a_descriptor_that_is_handed_over_is_not_inherited_by_programs) {
    const socket_pair between;
    struct stat handed_over = {};
    CHECK(fstat(between.ends[0], &handed_over) == 0);
    handed to;
    say(to.parent, NEIGHBOUR, 2, { between.ends[0] });
    say(to.parent, COMPLETE, 0);
    to.others.numbers();
    CHECK(are_private(handed_over));
    close(between.ends[1]);
}

TEST(who_waits_for_neighbours_is_interrupted) {
    const socket_pair between;
    handed to;
    say(to.parent, NEIGHBOUR, 2, { between.ends[0] });
    std::string waiting;
    std::thread waiter([&] { waiting = thrown_by([&] { to.others.numbers(); }); });
    to.others.end();
    waiter.join();
    CHECK(waiting == interrupted().what());
    say(to.parent, COMPLETE, 0);
    close(between.ends[1]);
}

static std::string refused(uint32_t kind, uint32_t number, size_t descriptors) {
    std::vector<socket_pair> pairs(descriptors);
    std::vector<int> ends;
    for (const auto & one : pairs) {
        ends.push_back(one.ends[0]);
    }
    std::string why;
    {
        handed to;
        say(to.parent, kind, number, ends);
        why = to.refusal();
    }
    for (const auto & one : pairs) {
        CHECK(has_ended(one.ends[1])); // nobody has the other end any more
        close(one.ends[1]);
    }
    return why;
}

TEST(what_a_parent_hands_over_wrongly_is_refused_and_closed) {
    CHECK(refused(NEIGHBOUR, 3, 0) == "message 1 has 0 descriptors instead of 1");
    CHECK(refused(NEIGHBOUR, 3, 2) == "message 1 has 2 descriptors instead of 1");
    CHECK(refused(NEIGHBOUR, NEIGHBOURS, 1) == "neighbour 16 cannot be");
    CHECK(refused(NEIGHBOUR, ~0u, 1) == "neighbour 4294967295 cannot be");
    CHECK(refused(COMPLETE, 0, 1) == "message 2 has 1 descriptors instead of 0");
    CHECK(refused(COMPLETE, 1, 0) == "the last message has the number 1");
    CHECK(refused(0, 0, 0) == "there is no message 0");
    CHECK(refused(LOCAL_NEIGHBOUR, 3, 0) == "message 3 has 0 descriptors instead of 1");
    CHECK(refused(LOCAL_NEIGHBOUR, 3, 2) == "message 3 has 2 descriptors instead of 1");
    CHECK(refused(LOCAL_NEIGHBOUR, NEIGHBOURS, 1) == "neighbour 16 cannot be");
    CHECK(refused(5, 0, 1) == "there is no message 5");
}

TEST(a_neighbour_is_handed_over_once_and_is_a_stream) {
    const socket_pair between;
    {
        handed to({ { 4, between.ends[0] } });
        say(to.parent, NEIGHBOUR, 4, { dup(between.ends[1]) });
        CHECK(to.refusal() == "neighbour 4 is there twice");
    }
    handed pipes;
    int ends[2];
    CHECK(pipe(ends) == 0);
    say(pipes.parent, NEIGHBOUR, 4, { ends[0] });
    CHECK(pipes.refusal() == "neighbour 4 is no stream socket");
    close(ends[1]);
    close(between.ends[1]);
}

TEST(half_a_message_of_the_parent_is_refused) {
    handed to;
    say_bytes(to.parent, words(NEIGHBOUR, 4).substr(0, 7));
    to.hang_up();
    CHECK(to.refusal() == "it ended within a message");
}
