#include "mesh_records.h"

#include "sealing.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

using namespace mesh;

static constexpr size_t SIZE_BYTES = 4;
static constexpr size_t TAG_BYTES = 16;

struct two_ends {
    two_ends() {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, of) != 0) {
            throw std::runtime_error("no socketpair");
        }
    }
    ~two_ends() {
        close(of[0]);
        close(of[1]);
    }
    two_ends(const two_ends &) = delete;
    two_ends & operator=(const two_ends &) = delete;

    int of[2];
};

// The two workers' keys: one seals with the first, the other one with the second
struct both_keys {
    explicit both_keys(dice & chance) {
        for (size_t i = 0; i < sealing_keys::BYTES; i++) {
            first.sending[i] = second.receiving[i] = static_cast<uint8_t>(chance.next());
            first.receiving[i] = second.sending[i] = static_cast<uint8_t>(chance.next());
        }
    }

    sealing_keys first;
    sealing_keys second;
};

struct sealed_bytes {
    blob plain;
    std::vector<blob> records;
};

static blob some_bytes(dice & chance, size_t size) {
    blob bytes(size + sizeof(uint64_t));
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        const uint64_t some = chance.next();
        std::memcpy(bytes.data() + at, &some, sizeof some);
    }
    bytes.resize(size);
    return bytes;
}

static size_t some_size(dice & chance) {
    switch (chance.below(40)) {
    case 0:
        return RECORD_BYTES - 1 + chance.below(3);
    case 1:
        return 1 + chance.below(3 * RECORD_BYTES);
    default:
        return 1 + chance.below(300);
    }
}

static void take_all(int socket, blob & bytes) {
    uint8_t some[16 * 1024];
    for (ssize_t n; (n = recv(socket, some, sizeof some, MSG_DONTWAIT)) > 0;) {
        bytes.insert(bytes.end(), some, some + n);
    }
}

// In one call or several, in two parts or one, through a socket that may take less than a record at once
static void seal_bytes(
    dice & chance, carrier & sealer, const two_ends & way, bool is_narrow, const blob & plain, blob & wire) {
    for (size_t done = 0; done < plain.size();) {
        const uint8_t * at = plain.data() + done;
        const size_t left = plain.size() - done;
        if (!is_narrow && chance.one_in(3)) {
            done += static_cast<size_t>(sealer.send_some(way.of[0], at, left));
        } else {
            const size_t first = chance.below(left + 1);
            done += sealer.send_now(way.of[0], at, first, at + first, left - first);
        }
        take_all(way.of[1], wire);
    }
}

static std::vector<blob> records_of(const blob & wire) {
    std::vector<blob> records;
    for (size_t at = 0; at < wire.size();) {
        reader in(wire.data() + at, wire.size() - at);
        uint32_t size;
        in.take(size);
        const size_t all = SIZE_BYTES + size + TAG_BYTES;
        if (all > wire.size() - at) {
            throw std::runtime_error("half a record was sent");
        }
        records.emplace_back(wire.data() + at, wire.data() + at + all);
        at += all;
    }
    return records;
}

static sealed_bytes seal(dice & chance, const sealing_keys & keys, int64_t most) {
    const two_ends way;
    const bool is_narrow = chance.one_in(4);
    if (is_narrow) {
        const int little = 8 * 1024;
        setsockopt(way.of[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    }
    const auto sealer = make_sealed(keys);
    sealed_bytes made;
    blob wire;
    for (int64_t n = chance.within(0, most); n > 0; n--) {
        const blob plain = some_bytes(chance, some_size(chance));
        seal_bytes(chance, *sealer, way, is_narrow, plain, wire);
        made.plain.insert(made.plain.end(), plain.begin(), plain.end());
    }
    made.records = records_of(wire);
    return made;
}

static blob joined(const std::vector<blob> & records) {
    blob all;
    for (const auto & one : records) {
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

// Whole records that are left out, come again, in another order, or from another connection
static void move_records(dice & chance, std::vector<blob> & records, const std::vector<blob> & others) {
    const size_t place = chance.below(records.size());
    const auto at = records.begin() + static_cast<ptrdiff_t>(place);
    const auto to = records.begin() + static_cast<ptrdiff_t>(chance.below(records.size() + 1));
    switch (chance.below(5)) {
    case 0:
        records.erase(at);
        break;
    case 1:
        records.resize(place);
        break;
    case 2:
        std::iter_swap(at, records.begin() + static_cast<ptrdiff_t>(chance.below(records.size())));
        break;
    case 3: {
        const blob again = *at;
        records.insert(to, again);
        break;
    }
    default:
        if (!others.empty()) {
            records.insert(to, chance.of(others));
        }
    }
}

// A size, a tag or any byte of a record that is another one
static void damage_record(dice & chance, blob & record) {
    if (record.size() <= SIZE_BYTES + TAG_BYTES) { // half of it is gone already
        return;
    }
    switch (chance.below(4)) {
    case 0: {
        const uint32_t size =
            static_cast<uint32_t>(chance.one_in(2) ? chance.odd(chance.below(10)) : RECORD_BYTES - 2 + chance.below(5));
        std::memcpy(record.data(), &size, sizeof size);
        break;
    }
    case 1: {
        const blob tag = chance.one_in(2) ? blob(TAG_BYTES) : some_bytes(chance, TAG_BYTES);
        std::copy(tag.begin(), tag.end(), record.end() - TAG_BYTES);
        break;
    }
    case 2:
        record[chance.below(record.size())] ^= static_cast<uint8_t>(1 << chance.below(8));
        break;
    default:
        record.resize(chance.below(record.size() + 20));
    }
}

static blob changed(dice & chance, std::vector<blob> records, const std::vector<blob> & others) {
    for (uint64_t n = chance.below(3); n > 0 && !records.empty(); n--) {
        if (chance.one_in(2)) {
            move_records(chance, records, others);
        } else {
            damage_record(chance, chance.one_in(2) ? records.back() : records[chance.below(records.size())]);
        }
    }
    blob bytes = joined(records);
    if (chance.one_in(8)) {
        bytes.resize(chance.below(bytes.size() + 1));
    } else if (chance.one_in(8)) {
        const blob noise = some_bytes(chance, 1 + chance.below(60));
        const auto at = static_cast<ptrdiff_t>(chance.one_in(2) ? bytes.size() : chance.below(bytes.size() + 1));
        bytes.insert(bytes.begin() + at, noise.begin(), noise.end());
    }
    return bytes;
}

struct opened_bytes {
    blob plain;
    std::string why; // it goes on with none; empty: they ended well
};

// They come and are taken in pieces of any size
static opened_bytes open_bytes(dice & chance, const sealing_keys & keys, const blob & bytes) {
    const two_ends way;
    const auto opener = make_sealed(keys);
    opened_bytes found;
    blob some(chance.one_in(2) ? 1 + chance.below(40) : 1 + chance.below(2 * RECORD_BYTES));
    ssize_t n = -1;
    try {
        for (size_t done = 0; n != 0;) {
            if (done < bytes.size()) {
                const size_t left = std::min<size_t>(bytes.size() - done, 1 + chance.below(100 * 1024));
                done +=
                    static_cast<size_t>(std::max<ssize_t>(0, send(way.of[0], bytes.data() + done, left, MSG_DONTWAIT)));
            }
            if (done == bytes.size()) {
                shutdown(way.of[0], SHUT_WR);
            }
            while ((n = opener->receive(way.of[1], some.data(), some.size(), MSG_DONTWAIT)) > 0) {
                found.plain.insert(found.plain.end(), some.data(), some.data() + n);
            }
        }
    } catch (const std::exception & error) {
        found.why = error.what();
    }
    return found;
}

// What is told of what comes behind the whole records, where that is certain
static std::string why_wanted(const blob & came, size_t whole, bool is_changed) {
    uint32_t size = 1;
    if (came.size() - whole >= SIZE_BYTES) {
        reader in(came.data() + whole, SIZE_BYTES);
        in.take(size);
    }
    if (size == 0 || size > RECORD_BYTES) {
        return "a record cannot have " + std::to_string(size) + " bytes";
    }
    return is_changed ? "" : "the connection ended within a record";
}

// Whether it opened the records up to the first one that differs, and nothing of what follows
static std::string judge(const sealed_bytes & sent, const blob & came, const opened_bytes & found, bool has_key) {
    const blob wire = joined(sent.records);
    const size_t most = std::min(wire.size(), came.size());
    const size_t same = static_cast<size_t>(
        std::mismatch(wire.begin(), wire.begin() + static_cast<ptrdiff_t>(most), came.begin()).first - wire.begin());
    size_t whole = 0;
    size_t plain = 0;
    for (const auto & one : sent.records) {
        if (!has_key || whole + one.size() > same) {
            break;
        }
        whole += one.size();
        plain += one.size() - SIZE_BYTES - TAG_BYTES;
    }
    if (found.plain != blob(sent.plain.begin(), sent.plain.begin() + static_cast<ptrdiff_t>(plain))) {
        return "it opened " + std::to_string(found.plain.size()) + " bytes, and not the " + std::to_string(plain) +
               " before the first change";
    }
    const bool is_clean = came.size() == whole;
    if (is_clean != found.why.empty()) {
        return is_clean ? "what nobody changed was refused: " + found.why : "changed records were taken";
    }
    const std::string wanted = is_clean ? "" : why_wanted(came, whole, !has_key || same < came.size());
    return wanted.empty() || found.why == wanted ? "" : "told as: " + found.why + ", and not: " + wanted;
}

std::string records_session(uint64_t seed, uint64_t & records) {
    if (!can_seal()) {
        return "";
    }
    try {
        dice chance(seed);
        both_keys keys(chance);
        const sealed_bytes sent = seal(chance, keys.first, 8);
        const both_keys strangers(chance);
        // its own records, sent back, or those of another connection
        const sealed_bytes others = seal(chance, chance.one_in(2) ? keys.second : strangers.first, 2);
        const blob came = changed(chance, sent.records, others.records);
        records += sent.records.size();
        const bool has_key = !chance.one_in(16);
        if (!has_key) {
            keys.second.receiving[chance.below(sealing_keys::BYTES)] ^= static_cast<uint8_t>(1 << chance.below(8));
        }
        return judge(sent, came, open_bytes(chance, keys.second, came), has_key);
    } catch (const std::exception & error) {
        return std::string("it cannot go on: ") + error.what();
    }
}
