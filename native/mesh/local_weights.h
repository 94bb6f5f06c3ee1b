// The weights that a worker has on its own disks: an index, and the open files that it speaks of.
#pragma once

#include "buffers.h"
#include "progress.h"
#include "weights_index.h"

namespace mesh {

// A whole tensor to be filled from whichever file has the content with this hash, and what became of it
struct wanted_weights {
    place target = {};
    ggml_type type = GGML_TYPE_F32;
    uint64_t size = 0;
    weights_hash hash = {};

    load_result result = load_result::no_such_hash; // when it is not `loaded`, the target is as it was, or zero
    const weights_tensor * source = nullptr;        // what was read
    size_t tried = 0;                               // places with this content
};

// Pieces of such a tensor, of one length and equally far apart in both; all lie within what they are of
struct wanted_part {
    wanted_weights whole; // the target is that of the first piece
    uint64_t first = 0;   // of the tensor
    uint64_t piece = 0;
    uint64_t count = 0;
    uint64_t stride = 0;
    uint64_t file_stride = 0;

    uint64_t span() const { return (count - 1) * stride + piece; } // bytes of the target
};

class local_weights {
public:
    local_weights() = default;
    explicit local_weights(weights_index index) : index(std::move(index)) {}

    void fill(std::vector<wanted_weights> & all, progress & doing) const;
    void fill(wanted_part & part, progress & doing) const;

private:
    bool choose(wanted_weights & one) const;
    bool read_parts(const wanted_part & part, progress & doing) const;
    bool read_stretches(const wanted_part & part, uint64_t at, progress & doing) const;
    void read(const std::vector<wanted_weights *> & all, progress & doing) const;
    bool read_piece(const wanted_weights & one, uint64_t first, uint8_t * staging) const;

    weights_index index;
};

} // namespace mesh
