// What goes between two mesh-servers on different machines: records that nobody between them can read, change, repeat
// or reorder. ChaCha20-Poly1305, where this machine has a libcrypto; keys come from the parent, which has agreed on
// them with the other one (docs/decisions/0093-sealed-pushes.md).
//
// A record: u32 size of what it holds, little endian and not encrypted, 1 to RECORD_BYTES; as many encrypted bytes; a
// tag of 16. The n-th record of a direction, from 0, has the nonce n (u64 in little endian after four zeros), and its
// size as associated data. Each direction has a key of its own, which no other connection has.
#pragma once

#include "channel.h"

#include <array>
#include <memory>

namespace mesh {

// Whether this program can seal on this machine
bool can_seal();
static constexpr char CANNOT_SEAL[] = "this machine has no libcrypto to seal with";

struct sealing_keys {
    static constexpr size_t BYTES = 32;

    sealing_keys() = default;
    sealing_keys(const sealing_keys &) = delete;
    sealing_keys & operator=(const sealing_keys &) = delete;
    ~sealing_keys(); // leaves nothing of them in memory

    std::array<uint8_t, BYTES> sending{};
    std::array<uint8_t, BYTES> receiving{};
};

static constexpr size_t RECORD_BYTES = 64 * 1024;

// For one connection, once. Throws lost where this program cannot seal
std::unique_ptr<carrier> make_sealed(const sealing_keys & keys);

} // namespace mesh
