// The RPC server under test, and its transport: sessions of this process in place of sockets.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <memory>

class rpc_session;

// Where the buffer that was allocated last really is: the client is not told
uint64_t last_base();

class rpc_server_under_test {
public:
    explicit rpc_server_under_test(ggml_backend_t device);
    ~rpc_server_under_test();

    // One connection, to its end
    void serve(rpc_session & client);

private:
    struct impl;
    std::unique_ptr<impl> pimpl;
};
