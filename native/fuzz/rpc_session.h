// The hostile client: sessions of valid and damaged frames, made as the server asks for bytes.
#pragma once

#include "dice.h"
#include "operations.h"
#include "totals.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// One connection from its first byte to its last. The server reads from it, and writes its answers to it.
class rpc_session {
public:
    rpc_session(uint64_t seed, fuzz_totals & totals);

    // more bytes for the server; false: the client hangs up
    bool read(void * data, size_t size);
    void write(const void * data, size_t size);

    // a frame without any damage was the last: the server must not have refused it
    bool refused_valid() const { return valid && !hung_up; }
    const std::string & last() const { return what; }

private:
    struct buffer {
        uint64_t handle;
        uint64_t base;
        uint64_t size;
        uint64_t memory; // where it really is
    };

    struct queued {
        std::vector<uint8_t> bytes;
        bool valid;
        const char * what;
        std::vector<std::pair<uint64_t, uint64_t>> apart; // memory that the server has no business with
    };

    void next_frame();
    void take_reply();
    void frame(uint8_t cmd, const void * data, size_t size, const char * name, size_t reply);
    template <typename T> void frame(uint8_t cmd, const T & request, const char * name, size_t reply = 0) {
        frame(cmd, &request, sizeof(request), name, reply);
    }

    void hello();
    void query();
    void peers();
    void memory();
    void data();
    void load();
    void graph();
    void ask();
    void half_rows();
    void indices_of(const std::vector<index_tensor> & tensors);
    void noise();
    bool hurt() { return damaging && dice_.one_in(3); }
    uint64_t odd();
    void damage(void * fields, size_t size);
    const buffer & some_buffer() { return buffers[dice_.below(buffers.size())]; }

    dice dice_;
    fuzz_totals & totals;
    std::vector<uint8_t> out;
    size_t sent = 0;
    std::vector<uint8_t> in;
    std::vector<buffer> buffers;
    std::vector<queued> later; // frames that follow this one
    std::string what;
    size_t reply = 0;        // bytes of the answer that is waited for
    uint64_t own_handle = 0; // the last that was chosen here
    int step = 0;
    int n_steps;
    std::vector<std::pair<uint64_t, uint64_t>> apart; // poisoned at the moment
    bool damaging;                                    // this session has damaged frames
    bool valid = true;
    bool extended = true; // HELLO has announced the extensions
    bool named = false;   // PEER_SESSION was sent
    bool lied = false;    // the last frame had another length than it said
    bool hung_up = false;
};
