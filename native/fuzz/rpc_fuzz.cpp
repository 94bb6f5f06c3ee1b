// Feeds an RPC server, in this process, with sessions of a hostile client.
//
//     rpc_fuzz [--frames N] [--seconds N] [--seed N] [--first N | --session N] [--threads N]
//
// The server is the real one: its source is compiled in here, only the transport is another. Each session is made from
// the seed and its number alone; when one crashes, `--seed S --session N` repeats it. The exit status is 1 when an
// undamaged frame was refused.

#include "rpc_server.h"
#include "rpc_session.h"
#include "totals.h"

#include "ggml-backend.h"

#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include <sys/resource.h>

// What is said last about a session that went wrong

static std::string last_log;

static void keep_log(ggml_log_level, const char * text, void *) {
    last_log = text;
}

static uint64_t seed = 1;
static uint64_t session = 0;
static const rpc_session * running = nullptr;

static void say_where() {
    fprintf(stderr, "\nin --seed %" PRIu64 " --session %" PRIu64 ", frame `%s`; last log: %s\n", seed, session,
        running ? running->last().c_str() : "", last_log.c_str());
}

extern "C" void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

extern "C" const char * __asan_default_options() {
    return "allocator_may_return_null=1:quarantine_size_mb=16:detect_leaks=1:abort_on_error=0";
}

extern "C" const char * __ubsan_default_options() {
    return "print_stacktrace=1:halt_on_error=1";
}

struct run_options {
    uint64_t frames = UINT64_MAX;
    uint64_t seconds = UINT64_MAX;
    uint64_t threads = 1;
    bool one = false; // session only
};

// false: there is no such option
static bool read_options(int argc, char ** argv, run_options & options) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const uint64_t value = strtoull(argv[i + 1], nullptr, 10);
        if (name == "--frames") {
            options.frames = value;
        } else if (name == "--seconds") {
            options.seconds = value;
        } else if (name == "--seed") {
            seed = value;
        } else if (name == "--threads") {
            options.threads = value;
        } else if (name == "--session") {
            session = value;
            options.one = true;
        } else if (name == "--first") {
            session = value;
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return false;
        }
    }
    return true;
}

static void watch_for_the_end() {
    ggml_log_set(keep_log, nullptr);
    ggml_set_abort_callback([](const char * text) {
        fprintf(stderr, "%s\n", text);
        say_where();
    });
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(say_where);
    }
}

static ggml_backend_t make_cpu(uint64_t threads) {
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads");
    set_n_threads(cpu, (int) threads);
    return cpu;
}

static long memory_peak() { // KiB
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void show(FILE * to, const fuzz_totals & totals, double elapsed) {
    fprintf(to,
        "%" PRIu64 " frames, %.0f a second, %" PRIu64 " sessions, %" PRIu64 " graphs; accepted %" PRIu64
        ", undamaged %" PRIu64 "; peak %ld MiB\n",
        totals.frames, totals.frames / elapsed, session, totals.graphs, totals.accepted, totals.valid,
        memory_peak() / 1024);
    fflush(to);
}

// Says what is wrong with one session: a refusal, which it returns, much time, or more memory than at any before
static bool look_at(const rpc_session & client, clock_t began, long & peak) {
    if (client.refused_valid()) {
        fprintf(stderr, "undamaged frame refused: ");
        say_where();
    }
    const clock_t took = (clock() - began) / CLOCKS_PER_SEC;
    if (took >= 2) {
        fprintf(stderr, "%ld s of computing ", (long) took);
        say_where();
    }
    const long now = memory_peak();
    if (now > peak + 64 * 1024) {
        fprintf(stderr, "memory grew from %ld to %ld MiB ", peak / 1024, now / 1024);
        say_where();
        peak = now;
    }
    return client.refused_valid();
}

static bool run_one(rpc_server_under_test & server, fuzz_totals & totals, long & peak) {
    rpc_session client(seed * 1000003 + session, totals);
    running = &client;
    const clock_t began = clock();
    server.serve(client);
    const bool wrong = look_at(client, began, peak);
    running = nullptr;
    return wrong;
}

int main(int argc, char ** argv) {
    run_options options;
    if (!read_options(argc, argv, options)) {
        return 2;
    }
    watch_for_the_end();
    ggml_backend_t cpu = make_cpu(options.threads);
    int wrong = 0;
    {
        rpc_server_under_test server(cpu);
        fuzz_totals totals;
        long peak = memory_peak();
        double elapsed = 0;
        double shown = 0;
        const auto start = std::chrono::steady_clock::now();
        do {
            wrong += run_one(server, totals, peak) ? 1 : 0;
            session++;
            elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            if (elapsed - shown > 30) {
                shown = elapsed;
                show(stderr, totals, elapsed);
            }
        } while (!options.one && wrong < 10 && totals.frames < options.frames && elapsed < (double) options.seconds);
        show(stdout, totals, elapsed);
    }
    ggml_backend_free(cpu);
    return wrong > 0;
}
