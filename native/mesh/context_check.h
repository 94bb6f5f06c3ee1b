// llama-server computes two tokens while it loads, to find out from its own cache's bookkeeping whether the end of a
// sequence can be removed (common_context_can_seq_rm). Nobody reads what they come to, and to wait for it would take
// as long as a token takes through all workers; so nothing of it is computed or sent. It is recognised by what it does
// to the cache: a cache is cleared when it is made, once more right before these tokens, and again behind them.
// The first token of a request is real in any case, and no model is ready before that.
#pragma once

#include <atomic>
#include <cstdint>

namespace mesh {

// Of all workers that were opened together
class context_check {
public:
    // A buffer is cleared, `before`: how often it was before that
    void cleared(uint32_t before);
    // A device is to compute; `wanted`: as below. true: this belongs to the check, and is not computed
    bool skips_compute(bool wanted);
    // Whether what is computed now is of the check: then there is nothing to add up, either
    bool is_going_on() const { return now == state::going_on; }
    // Results of a device are wanted, by the head or another device; `wanted` notes that. true: they are of the check,
    // and nobody looks at their values
    bool skips_result(bool & wanted) const;

private:
    enum class state { before, prepared, going_on, over };
    std::atomic<state> now{ state::before };
};

} // namespace mesh
