#include "mesh_neighbour.h"

#include "neighbours.h"
#include "operations.h"

#include <csignal>
#include <memory>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

using namespace mesh;

static constexpr uint32_t NUMBER = 3;

struct one_push {
    uint64_t token;
    blob data;
    bool is_summand;
};

struct pushes {
    std::vector<one_push> whole; // before the damage
    blob bytes;
    bool damaged = false;
};

static wire_header some_header(dice & chance, const blob & body, bool is_summand) {
    wire_header header;
    header.kind = static_cast<uint16_t>(is_summand ? message::summand : message::pushed);
    header.size = static_cast<uint32_t>(body.size());
    header.id = chance.next();
    return header;
}

// Its header is one that no neighbour may send, or what follows is too short
static void put_damaged(dice & chance, wire_header header, const blob & body, writer & out) {
    size_t sent = body.size();
    const bool is_summand = header.kind == static_cast<uint16_t>(message::summand);
    const int64_t longest = static_cast<int64_t>(sizeof(uint64_t)) + (is_summand ? SUMMAND_BYTES : PIECE_BYTES);
    switch (chance.below(4)) {
    case 0:
        header.kind = static_cast<uint16_t>(chance.one_in(2) ? chance.below(256) : chance.next());
        if (header.kind == static_cast<uint16_t>(message::pushed) ||
            header.kind == static_cast<uint16_t>(message::summand)) {
            header.kind = 0;
        }
        break;
    case 1:
        header.size = chance.one_in(2) ? static_cast<uint32_t>(chance.below(8))
                                       : static_cast<uint32_t>(
                                             chance.within(longest + 1, chance.one_in(2) ? longest + 9 : UINT32_MAX));
        break;
    case 2:
        header.zero = static_cast<uint16_t>(1 + chance.below(UINT16_MAX));
        break;
    default:
        sent = chance.below(body.size());
    }
    const size_t start = out.data.size();
    writer bytes;
    bytes.put(header.size);
    bytes.put(header.kind);
    bytes.put(header.zero);
    bytes.put(header.id);
    bytes.put_bytes(body.data(), sent);
    out.put_bytes(bytes.data.data(), bytes.data.size());
    if (chance.one_in(8)) {
        out.data.resize(start + 1 + chance.below(wire_header::bytes - 1)); // not even a header
    }
}

static pushes make(dice & chance) {
    pushes made;
    writer out;
    for (int64_t n = chance.within(1, 12); n > 0 && !made.damaged; n--) {
        const uint64_t token = chance.next();
        blob data(chance.below(chance.one_in(20) ? 20000 : 200));
        for (auto & byte : data) {
            byte = static_cast<uint8_t>(chance.next());
        }
        writer body;
        body.put(token);
        body.put_bytes(data.data(), data.size());
        const bool is_summand = chance.one_in(2);
        const wire_header header = some_header(chance, body.data, is_summand);
        made.damaged = chance.one_in(8);
        if (made.damaged) {
            put_damaged(chance, header, body.data, out);
        } else {
            header.put(out);
            out.put_bytes(body.data.data(), body.data.size());
            made.whole.push_back({ token, std::move(data), is_summand });
        }
    }
    made.bytes = std::move(out.data);
    return made;
}

static std::shared_ptr<const sealing_keys> keys_of(uint8_t sending, uint8_t receiving) {
    auto keys = std::make_shared<sealing_keys>();
    keys->sending.fill(sending);
    keys->receiving.fill(receiving);
    return keys;
}

// In pieces of any size, as they may come; sealed or as they are
static void send_all(dice & chance, int socket, const blob & bytes, carrier * by) {
    size_t done = 0;
    while (done < bytes.size()) {
        const size_t left = bytes.size() - done;
        const size_t piece = 1 + chance.below(left);
        const ssize_t n = by != nullptr ? by->send_some(socket, bytes.data() + done, piece)
                                        : send(socket, bytes.data() + done, piece, MSG_NOSIGNAL);
        if (n <= 0) {
            break; // refused already
        }
        done += static_cast<size_t>(n);
    }
    close(socket);
}

std::string neighbour_session(uint64_t seed, uint64_t & frames) {
    dice chance(seed);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        return "no socketpair";
    }
    const pushes made = make(chance);
    const bool is_sealed = chance.one_in(2) && can_seal();
    const bool is_direct = chance.one_in(2) || is_sealed;
    neighbours us({ { NUMBER, ends[0], is_direct, is_sealed ? keys_of(1, 2) : nullptr } });
    frames += made.whole.size() + (made.damaged ? 1 : 0);
    const auto sealer = is_sealed ? make_sealed(*keys_of(2, 1)) : nullptr;
    send_all(chance, ends[1], made.bytes, sealer.get());
    try {
        for (const auto & one : made.whole) {
            const blob taken = one.is_summand ? us.take_summand(NUMBER, one.token)
                                              : us.take(NUMBER, one.token, static_cast<uint32_t>(one.data.size()));
            if (taken != one.data) {
                return "other bytes were taken than were pushed";
            }
        }
    } catch (const std::exception & error) {
        return std::string("an undamaged push was refused: ") + error.what();
    }
    try {
        us.take(NUMBER, 0, 0);
    } catch (const std::exception & error) {
        const std::string why = error.what();
        const bool clean = why == "lost neighbour 3: it ended";
        return clean == made.damaged ? "its end was told as: " + why : "";
    }
    return "a damaged push was taken";
}
