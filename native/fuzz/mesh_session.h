// One hostile head: frames of the mesh-server protocol, valid and damaged, given to an executor one after the other.
#pragma once

#include "dice.h"
#include "executor.h"
#include "mesh_echo.h"
#include "operations.h"
#include "totals.h"

#include <string>
#include <utility>
#include <vector>

class mesh_session {
public:
    mesh_session(uint64_t seed, const std::vector<mesh::lent_device> & devices, fuzz_totals & totals);

    // To the first frame that is refused, or the last
    void run();

    // A frame without any damage was refused
    bool refused_valid() const { return valid && !why.empty() && why.find("not a number") == std::string::npos; }
    const char * last() const { return what; }
    const std::string & refusal() const { return why; }

private:
    struct buffer {
        uint32_t number;
        uint64_t size;
    };
    typedef std::vector<std::pair<uint64_t, uint64_t>> ranges;

    template <class Body> void give(const Body & body, const char * name, const mesh::blob & rest = {}) {
        mesh::writer out;
        body.put(out);
        out.put_bytes(rest.data(), rest.size());
        give_bytes(static_cast<uint16_t>(Body::number), std::move(out.data), name);
    }
    void give_bytes(uint16_t number, mesh::blob body, const char * name);
    void step();
    void hello();
    void allocate();
    void memory();
    void data();
    void load();
    void pushes();
    void load_parts();
    void sum();
    bool set_values(const mesh::sum_body & body);
    void spoil(mesh::blob & come);
    void noise();
    void graph();
    void again();
    bool make_graph(const buffer & where, std::vector<ggml_tensor *> & tensors, std::vector<ggml_tensor *> & nodes,
        std::vector<index_tensor> & indices, ranges & gaps);
    void set_indices(const std::vector<index_tensor> & indices);
    mesh::wire_tensor describe(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & tensors) const;
    void damage(mesh::wire_tensor & tensor, size_t count);
    void damage(mesh::blob & bytes);
    bool hurt() { return damaging && dice_.one_in(3); }
    uint64_t odd();
    const buffer & some_buffer() { return buffers[dice_.below(buffers.size())]; }

    dice dice_;
    fuzz_totals & totals;
    const mesh::local_weights files;
    echo others;
    mesh::executor worker;
    std::vector<buffer> buffers;
    uint32_t last_buffer = 0;
    uint64_t last_id = 0;
    ggml_context * ctx = nullptr; // of the graph that is made
    const char * what = "";
    std::string why; // the last frame was refused
    const int steps;
    const bool damaging; // this session has damaged frames
    bool valid = true;
};
