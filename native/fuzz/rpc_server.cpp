#include "rpc_server.h"

#include "rpc_session.h"

#include "ggml-backend.h"

static uint64_t last = 0;

static ggml_backend_buffer_t watched_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, size);
    last = buffer ? (uint64_t) ggml_backend_buffer_get_base(buffer) : 0;
    return buffer;
}

// The server is the real one, so only one file of the program may have it
#define ggml_backend_buft_alloc_buffer watched_alloc_buffer
#include "ggml-rpc.cpp" // from the patched source
#undef ggml_backend_buft_alloc_buffer

uint64_t last_base() {
    return last;
}

// The transport

struct socket_t::impl {
    rpc_session * session = nullptr;
};

static rpc_session * connecting; // whom connect() connects to

socket_t::socket_t(std::unique_ptr<impl> p) : pimpl(std::move(p)) {}
socket_t::~socket_t() = default;
bool socket_t::send_data(const void * data, size_t size) {
    pimpl->session->write(data, size);
    return true;
}
bool socket_t::recv_data(void * data, size_t size) {
    return pimpl->session->read(data, size);
}
bool socket_t::recv_data_within(void * data, size_t size, int) {
    return recv_data(data, size);
}
bool socket_t::flush() {
    return true;
}
void socket_t::limit_send(int) {}
void socket_t::shutdown() {}
void socket_t::shutdown_sending() {}
bool socket_t::wait_hangup() {
    return false;
}
bool socket_t::is_hung_up() {
    return false;
}
socket_ptr socket_t::accept() {
    return nullptr;
}
void socket_t::get_caps(uint8_t *) {}
void socket_t::update_caps(const uint8_t *) {}
socket_ptr socket_t::create_server(const char *, int) {
    return nullptr;
}
socket_ptr socket_t::adopt_server(int) {
    return nullptr;
}
socket_ptr socket_t::connect(const char *, int) {
    auto p = std::make_unique<impl>();
    p->session = connecting;
    return socket_ptr(new socket_t(std::move(p)));
}
bool rpc_transport_init() {
    return true;
}
void rpc_transport_shutdown() {}

// The server

struct rpc_server_under_test::impl {
    rpc_server_shared shared;
};

rpc_server_under_test::rpc_server_under_test(ggml_backend_t device) :
    pimpl(new impl{
        { { device }, nullptr, rpc_memory({ 64u * 1024 * 1024 }), {}, {}, {}, std::make_shared<rpc_peers>(), {} } }) {
    rpc_server_shared & shared = pimpl->shared;
    shared.peers->allow({}); // it announces what has to do with peers; none ever comes
    shared.devices.push_back(rpc_describe(device));
    shared.weight_ops = rpc_find_weight_ops(device);
}

rpc_server_under_test::~rpc_server_under_test() = default;

void rpc_server_under_test::serve(rpc_session & client) {
    connecting = &client;
    rpc_serve_client(pimpl->shared, socket_t::connect("", 0));
}
