#include "sealing.h"

#include "libcrypto.h"

#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS says it for each socket
#endif

namespace mesh {

static constexpr size_t SIZE_BYTES = 4;
static constexpr size_t TAG_BYTES = 16;
static constexpr size_t NONCE_BYTES = 12;
static constexpr size_t MOST_BYTES = SIZE_BYTES + RECORD_BYTES + TAG_BYTES;

// Of this machine; nullptr: it has none
static const libcrypto * crypto() {
    static const std::unique_ptr<const libcrypto> found = load_libcrypto(LIBCRYPTO_NAMES);
    return found.get();
}

// Not left out by a compiler that sees that nobody reads it
static void clear(std::array<uint8_t, sealing_keys::BYTES> & key) {
    volatile uint8_t * bytes = key.data();
    for (size_t i = 0; i < key.size(); i++) {
        bytes[i] = 0;
    }
}

sealing_keys::~sealing_keys() {
    clear(sending);
    clear(receiving);
}

static void must(int done, const char * what) {
    if (done != 1) {
        throw lost(std::string("libcrypto cannot ") + what);
    }
}

static uint32_t take_size(const uint8_t * bytes) {
    reader in(bytes, SIZE_BYTES);
    uint32_t size;
    in.take(size);
    return size;
}

struct end_context {
    void operator()(evp_cipher_ctx * context) const { crypto()->ctx_free(context); }
};

// One direction
class cipher {
public:
    cipher(const std::array<uint8_t, sealing_keys::BYTES> & key, bool seals) {
        if (crypto() == nullptr) {
            throw lost(CANNOT_SEAL);
        }
        owned.reset(crypto()->ctx_new());
        context = owned.get();
        must(context != nullptr ? 1 : 0, "begin");
        const evp_cipher * kind = crypto()->chacha20_poly1305();
        must(crypto()->cipher_init(context, kind, nullptr, key.data(), nullptr, seals ? 1 : 0), "take a key");
    }
    cipher(const cipher &) = delete;
    cipher & operator=(const cipher &) = delete;

    // The next record begins, with this before it
    void begin(const uint8_t * size) {
        uint8_t nonce[NONCE_BYTES] = {};
        for (size_t i = 0; i < sizeof records; i++) {
            nonce[NONCE_BYTES - sizeof records + i] = static_cast<uint8_t>(records >> (8 * i));
        }
        records++;
        int none = 0;
        must(crypto()->cipher_init(context, nullptr, nullptr, nullptr, nonce, -1), "begin a record");
        must(crypto()->cipher_update(context, nullptr, &none, size, SIZE_BYTES), "begin a record");
    }
    void change(const void * from, size_t size, uint8_t * to) {
        int done = 0;
        if (size > 0) {
            must(
                crypto()->cipher_update(context, to, &done, static_cast<const uint8_t *>(from), static_cast<int>(size)),
                "read a record");
        }
    }
    void sign(uint8_t * tag) {
        int none = 0;
        must(crypto()->cipher_final(context, tag, &none), "end a record");
        must(crypto()->ctx_ctrl(context, libcrypto::GET_TAG, TAG_BYTES, tag), "end a record");
    }
    bool is_signed(const uint8_t * tag) {
        uint8_t copy[TAG_BYTES];
        std::memcpy(copy, tag, sizeof copy);
        int none = 0;
        must(crypto()->ctx_ctrl(context, libcrypto::SET_TAG, TAG_BYTES, copy), "check a record");
        return crypto()->cipher_final(context, copy, &none) == 1;
    }

private:
    std::unique_ptr<evp_cipher_ctx, end_context> owned;
    evp_cipher_ctx * context = nullptr;
    uint64_t records = 0;
};

class sealed : public carrier {
public:
    explicit sealed(const sealing_keys & keys) :
        sealing(keys.sending, true), opening(keys.receiving, false), came(2 * MOST_BYTES) {
        plain.reserve(RECORD_BYTES);
        leaving.reserve(MOST_BYTES);
    }

    ssize_t receive(int socket, void * data, size_t size, int flags) override {
        while (read == plain.size()) {
            if (open_next()) {
                continue;
            }
            const ssize_t n = recv(socket, came.data() + end, came.size() - end, flags);
            if (n == 0 && end > begin) {
                throw lost("the connection ended within a record");
            }
            if (n <= 0) {
                return n;
            }
            end += static_cast<size_t>(n);
        }
        const size_t taken = std::min(size, plain.size() - read);
        std::memcpy(data, plain.data() + read, taken);
        read += taken;
        return static_cast<ssize_t>(taken);
    }

    size_t send_now(int socket, const void * data, size_t size, const void * more, size_t more_size) override {
        const auto * first = static_cast<const uint8_t *>(data);
        const auto * second = static_cast<const uint8_t *>(more);
        const size_t all = size + more_size;
        size_t taken = 0;
        while (taken < all) {
            if (held == 0) {
                const size_t from_first = std::min(size - std::min(taken, size), RECORD_BYTES);
                const size_t at_second = std::max(taken, size) - size;
                const size_t from_second = std::min(more_size - at_second, RECORD_BYTES - from_first);
                seal(first + taken, from_first, second + at_second, from_second);
            }
            if (!pass(socket, MSG_DONTWAIT)) {
                break;
            }
            taken += held;
            held = 0;
        }
        return taken;
    }

    // Whoever could not send a whole record comes back with all bytes that are in it, perhaps in two parts
    ssize_t send_some(int socket, const void * data, size_t size) override {
        if (held == 0) {
            seal(data, std::min(size, RECORD_BYTES), nullptr, 0);
        }
        if (!pass(socket, 0)) {
            return -1;
        }
        const size_t taken = std::min(held, size);
        held -= taken;
        return static_cast<ssize_t>(taken);
    }

private:
    // Of what has come, if a whole record has. Throws lost, bad_message
    bool open_next() {
        const size_t there = end - begin;
        if (there < SIZE_BYTES) {
            return make_room();
        }
        const uint8_t * record = came.data() + begin;
        const size_t size = take_size(record);
        if (size == 0 || size > RECORD_BYTES) {
            throw bad_message("a record cannot have " + std::to_string(size) + " bytes");
        }
        if (there < SIZE_BYTES + size + TAG_BYTES) {
            return make_room();
        }
        plain.resize(size);
        read = 0;
        opening.begin(record);
        opening.change(record + SIZE_BYTES, size, plain.data());
        if (!opening.is_signed(record + SIZE_BYTES + size)) {
            plain.clear();
            throw bad_message("a record is not what the other worker has sent");
        }
        begin += SIZE_BYTES + size + TAG_BYTES;
        return true;
    }

    bool make_room() {
        if (begin == end) {
            begin = end = 0;
        } else if (came.size() - begin < MOST_BYTES) {
            std::memmove(came.data(), came.data() + begin, end - begin);
            end -= begin;
            begin = 0;
        }
        return false;
    }

    void seal(const void * data, size_t size, const void * more, size_t more_size) {
        held = size + more_size;
        leaving.resize(SIZE_BYTES + held + TAG_BYTES);
        gone = 0;
        uint8_t * to = leaving.data();
        for (size_t i = 0; i < SIZE_BYTES; i++) {
            to[i] = static_cast<uint8_t>(held >> (8 * i));
        }
        sealing.begin(to);
        sealing.change(data, size, to + SIZE_BYTES);
        sealing.change(more, more_size, to + SIZE_BYTES + size);
        sealing.sign(to + SIZE_BYTES + held);
    }

    // The rest of the record; false: not all of it now, or the socket has broken
    bool pass(int socket, int flags) {
        while (gone < leaving.size()) {
            const ssize_t n = send(socket, leaving.data() + gone, leaving.size() - gone, flags | MSG_NOSIGNAL);
            if (n < 0) {
                return false;
            }
            gone += static_cast<size_t>(n);
        }
        return true;
    }

    // Of what comes: sealed bytes from `begin` to `end`, opened ones from `read` on
    cipher sealing;
    cipher opening;
    std::vector<uint8_t> came;
    size_t begin = 0;
    size_t end = 0;
    std::vector<uint8_t> plain;
    size_t read = 0;
    // Of what leaves: one record, sent up to `gone`; of what it holds, as many bytes are not yet counted as sent
    std::vector<uint8_t> leaving;
    size_t gone = 0;
    size_t held = 0;
};

// Two records with a key of ones and no nonce but their number, by another implementation of RFC 8439 (Python's
// cryptography): the size, what is encrypted, the tag
static constexpr size_t KNOWN_BYTES = 5;
static const std::array<std::array<uint8_t, SIZE_BYTES + KNOWN_BYTES + TAG_BYTES>, 2> KNOWN = { {
    { 5, 0, 0, 0, 0x69, 0x42, 0x21, 0xbd, 0x81, 0x4b, 0xd7, 0xba, 0x00, 0xea, 0x75, 0x85, 0xd6, 0x62, 0xde, 0x25, 0x07,
        0x15, 0x02, 0xe4, 0xd9 },
    { 5, 0, 0, 0, 0x25, 0x5f, 0x47, 0x7f, 0xe7, 0x9e, 0x8b, 0x59, 0x74, 0x60, 0x80, 0x6f, 0xcb, 0x17, 0xc8, 0x3c, 0x4c,
        0xf0, 0x84, 0xc4, 0x3a },
} };

// A library of which this is not true is not used: it has these functions, and they do something else
static bool is_as_the_standard_says() {
    std::array<uint8_t, sealing_keys::BYTES> key;
    key.fill(1);
    cipher sealing(key, true);
    cipher opening(key, false);
    for (const auto & known : KNOWN) {
        auto made = known;
        sealing.begin(known.data());
        sealing.change("hello", KNOWN_BYTES, &made[SIZE_BYTES]);
        sealing.sign(&made[SIZE_BYTES + KNOWN_BYTES]);
        std::array<uint8_t, KNOWN_BYTES> opened;
        opening.begin(known.data());
        opening.change(&known[SIZE_BYTES], KNOWN_BYTES, opened.data());
        if (made != known || !opening.is_signed(&known[SIZE_BYTES + KNOWN_BYTES]) ||
            std::memcmp(opened.data(), "hello", KNOWN_BYTES) != 0) {
            return false;
        }
    }
    std::array<uint8_t, KNOWN_BYTES> opened;
    opening.begin(KNOWN[0].data());
    opening.change(&KNOWN[0][SIZE_BYTES], KNOWN_BYTES, opened.data());
    return !opening.is_signed(&KNOWN[0][SIZE_BYTES + KNOWN_BYTES]); // it is the first record, not the third
}

// Nor where a system allows other ciphers only
bool can_seal() {
    try {
        static const bool can = is_as_the_standard_says();
        return can;
    } catch (const lost &) {
        return false;
    }
}

std::unique_ptr<carrier> make_sealed(const sealing_keys & keys) {
    return std::make_unique<sealed>(keys);
}

} // namespace mesh
