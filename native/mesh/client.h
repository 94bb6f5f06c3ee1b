// What ggml sees of a worker: devices, their buffers, a backend for each. The functions behind ggml's tables are in
// client_device.cpp, client_buffer.cpp and client_backend.cpp; client_copies.cpp moves bytes, and has one worker push
// to another.
#pragma once

#include "connection.h"
#include "context_check.h"
#include "head_weights.h"
#include "set_aside.h"
#include "sizes.h"

#include "ggml-backend-impl.h"

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <unordered_set>

namespace mesh {

struct client_device;

// A graph that a worker keeps. llama.cpp gives each graph that it builds another uid, and builds the same ones again
// when it goes from one set of slots to another
struct kept_graph {
    uint64_t uid;   // by which the worker knows it
    uint64_t now;   // the uid that llama.cpp gave it last
    uint64_t first; // of the places of its small results
    blob body;      // of its GRAPH, with places from 0 on
};

struct client_worker {
    client_worker(int socket, uint32_t place, const weights_index & index) :
        place(place), link(socket, place, "worker " + std::to_string(place)), loading(link, index) {}

    const uint32_t place; // in the head's list of workers
    connection link;
    weights_loading loading;
    std::unordered_set<uint32_t> neighbours; // places of workers with which it has a connection, once it has said so
    uint64_t meet = 0;                       // that asks for them; 0: it was not asked
    blob met;
    // that it keeps for each device, oldest first; guarded by the connection's order
    std::array<std::deque<kept_graph>, DEVICES> graphs;
    // likewise: whether it has been asked for a SUM, and the graphs (uids at the worker) with one behind them
    bool sums = false;
    std::unordered_set<uint64_t> summed;
    uint64_t synced = 0;                               // the last SYNC: all is settled that was asked before
    std::shared_ptr<std::vector<client_worker *>> all; // that were opened with it
    std::shared_ptr<context_check> check;              // of those
};

struct client_buffer {
    client_device * device;
    uint32_t number;
    uint64_t base; // where its addresses begin: nothing is there, each reading of it would fault
    uint64_t size;
    uint32_t cleared = 0; // how often
};

struct client_device {
    client_worker * worker;
    uint32_t number; // at the worker
    std::string name;
    std::string description;
    uint64_t alignment;
    uint64_t most_bytes;
    uint64_t free_bytes;
    uint64_t total_bytes;
    bool wanted = false; // what it computed for the context_check is
    uint64_t lent_bytes; // that this head may allocate: what the parent process says, or else the worker
    std::atomic<uint64_t> held_bytes{ 0 };
    size_rule rule;
    ggml_backend_device device;
    ggml_backend_buffer_type buffer_type;
    // Memory for computing that was freed last: llama.cpp makes its scheduler anew with each change of samplers and
    // asks for nearly the same again; to free it would have the worker forget its graphs. Guarded by the connection's
    // order
    std::unique_ptr<client_buffer> spare;
    uint64_t computed = 0; // the uid, at the worker, of the graph that was computed last. Likewise guarded
    // Small results of graphs, see set_aside.h. Guarded by the connection's order
    std::unique_ptr<client_buffer> results;
    uint64_t results_end = 0;
    std::unordered_map<const ggml_tensor *, uint64_t> aside;
};

struct worker_socket {
    int socket;
    uint32_t count = 0; // devices that are expected; 0: any number
};

// Greets these workers, the first of them at this place of the head's list, and lists their devices: those are named
// from the same number on. `patience`: for the answers of all of them. Throws std::runtime_error
std::vector<client_device *> open_workers(const std::vector<worker_socket> & sockets, ggml_backend_reg_t registry,
    const weights_index & index, uint32_t first = 0, std::chrono::milliseconds patience = std::chrono::seconds(30));

// Asks a worker once which neighbours it has, and waits for nothing
void ask_neighbours(client_worker & worker);
// Waits for what it answers. false: it is lost
bool take_neighbours(client_worker & worker);

// client_buffer.cpp
void fill_buffer_type(client_device & device);
client_device * device_of(ggml_backend_buffer_type_t type); // nullptr: none of ours
client_buffer * buffer_of(const ggml_tensor * tensor);      // of its memory; nullptr: not on a worker
// nullptr: there is no memory for it, or the worker is lost
std::unique_ptr<client_buffer> ask_for(client_device & device, uint64_t size);

// client_copies.cpp
uint64_t offset_in(const client_buffer * buffer, const ggml_tensor * tensor);
void write_tensor(const ggml_tensor * tensor, const void * data, size_t offset, size_t size);
// Asks for these bytes; they are there when the connection has waited for all
bool read_tensor(const ggml_tensor * tensor, void * data, size_t offset, size_t size);
// All of what was computed, as half floats: to a worker, and from one, where it is waited for. false: it has to go as
// it is
bool write_activation(const ggml_tensor * from, const ggml_tensor * to);
bool read_activation(const ggml_tensor * tensor, void * data);
// Of all of a tensor: its worker is lost if it cannot be computed with
void check_read(const ggml_tensor * tensor, void * data);
// Whether each says that it has a connection with the other
bool are_neighbours(const client_worker & one, const client_worker & other);
// Held while workers are told what to send each other: each pair of them has it in one order
struct pair_order {
    pair_order();
    std::lock_guard<std::mutex> lock;
    const uint64_t token; // for it
};
// Within a worker, or to a neighbour of it. false: it has to go through the head
bool copy_tensor(const ggml_tensor * from, const ggml_tensor * to);

// client_backend.cpp
ggml_backend_t open_backend(client_device & device);

// client_graph.cpp: the body of GRAPH, with the places of small results from `first` on. false: it cannot be sent, and
// why says what is wrong
bool write_graph(const ggml_cgraph * graph, const client_device & device, const set_aside & results, uint64_t first,
    writer & out, std::string & why);

} // namespace mesh
