// Feeds what works off a mesh-server's requests, in this process, with the sessions of a hostile head; one of 32 is
// that of a hostile neighbour, and one of somebody who changes the sealed records of two neighbours.
//
//     mesh_fuzz [--frames N] [--seconds N] [--seed N] [--session N] [--records 1]
//
// `--records 1`: sessions with records alone, of which --frames are counted then.
//
// Frames are those of the protocol, made of valid operations and then damaged. Each session is made from the seed and
// its number alone; when one crashes, `--seed S --session N` repeats it. The exit status is 1 when an undamaged frame
// was refused.

#include "mesh_neighbour.h"
#include "mesh_records.h"
#include "mesh_session.h"
#include "sealing.h"

#include "ggml-backend.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include <sys/resource.h>

using namespace mesh;

static uint64_t seed = 1;
static uint64_t session = 0;
static bool records_alone = false;
static const mesh_session * running = nullptr;

static void say_where() {
    std::fprintf(stderr, "\nin --seed %" PRIu64 " --session %" PRIu64 ", frame `%s`; refused: %s\n", seed, session,
        running != nullptr ? running->last() : "", running != nullptr ? running->refusal().c_str() : "");
}

extern "C" void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

extern "C" const char * __asan_default_options() {
    return "allocator_may_return_null=1:quarantine_size_mb=16:detect_leaks=1:abort_on_error=0";
}

extern "C" const char * __ubsan_default_options() {
    return "print_stacktrace=1:halt_on_error=1";
}

static bool wrong_or_slow(const mesh_session & one, clock_t began) {
    const long took = static_cast<long>((clock() - began) / CLOCKS_PER_SEC);
    if (took >= 2) {
        std::fprintf(stderr, "%ld s of computing ", took);
        say_where();
    }
    if (one.refused_valid()) {
        std::fprintf(stderr, "undamaged frame refused: ");
        say_where();
    }
    return one.refused_valid();
}

// Two to four threads share the work of a node; one session of 8, as they are started anew for each graph
static std::vector<lent_device> with_threads(ggml_backend_t cpu) {
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads"));
    const int threads = session % 8 == 5 ? static_cast<int>(2 + session / 8 % 3) : 1;
    set_threads(cpu, threads);
    return { { cpu, 64u << 20, {}, threads } };
}

// true: something came of it that must not
static bool run_one(ggml_backend_t cpu, fuzz_totals & totals) {
    const std::vector<lent_device> devices = with_threads(cpu);
    const uint64_t from = seed * 1000003 + session;
    const bool has_records = records_alone || session % 32 == 15;
    if (has_records || session % 32 == 31) {
        const std::string wrong =
            has_records ? records_session(from, totals.records) : neighbour_session(from, totals.frames);
        if (!wrong.empty()) {
            std::fprintf(stderr, "%s: %s", has_records ? "records" : "a neighbour", wrong.c_str());
            say_where();
        }
        return !wrong.empty();
    }
    mesh_session head(from, devices, totals);
    running = &head;
    const clock_t began = clock();
    head.run();
    const bool wrong = wrong_or_slow(head, began);
    running = nullptr;
    return wrong;
}

static void show(const fuzz_totals & totals, double elapsed) {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    std::printf("%" PRIu64 " frames, %.0f a second, %" PRIu64 " sessions, %" PRIu64 " graphs; accepted %" PRIu64
                ", undamaged %" PRIu64 "; %" PRIu64 " sealed records%s; peak %ld MiB\n",
        totals.frames, static_cast<double>(totals.frames) / elapsed, session, totals.graphs, totals.accepted,
        totals.valid, totals.records, can_seal() ? "" : " (no libcrypto)", usage.ru_maxrss / 1024);
}

int main(int argc, char ** argv) {
    uint64_t frames = UINT64_MAX;
    uint64_t seconds = UINT64_MAX;
    bool one = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        if (name == "--frames") {
            frames = value;
        } else if (name == "--seconds") {
            seconds = value;
        } else if (name == "--seed") {
            seed = value;
        } else if (name == "--session") {
            session = value;
            one = true;
        } else if (name == "--records") {
            records_alone = value != 0;
        } else {
            std::fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    if (records_alone && !can_seal()) {
        std::fprintf(stderr, "--records needs libcrypto, which this machine does not have\n");
        return 2;
    }
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_set_abort_callback([](const char * text) {
        std::fprintf(stderr, "%s\n", text);
        say_where();
    });
    if (__sanitizer_set_death_callback != nullptr) {
        __sanitizer_set_death_callback(say_where);
    }
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    fuzz_totals totals;
    int wrong = 0;
    double elapsed = 0;
    const auto start = std::chrono::steady_clock::now();
    do {
        wrong += run_one(cpu, totals) ? 1 : 0;
        session++;
        elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } while (!one && wrong < 10 && (records_alone ? totals.records : totals.frames) < frames &&
             elapsed < static_cast<double>(seconds));
    show(totals, elapsed);
    ggml_backend_free(cpu);
    return wrong > 0 ? 1 : 0;
}
