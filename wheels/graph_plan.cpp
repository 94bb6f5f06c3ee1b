// mesh-server asks the CPU's backend how much room a graph takes. In a portable
// build that is one of several modules, which ggml loads and does not tell:
// this finds the loaded one.
#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

typedef ggml_cplan (*plan_function)(const ggml_cgraph *, int,
                                    ggml_threadpool *);

static plan_function find_plan() {
  ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
  void *known = cpu == nullptr ? nullptr
                               : ggml_backend_reg_get_proc_address(
                                     cpu, "ggml_backend_set_n_threads");
  Dl_info place = {};
  void *module = known != nullptr && dladdr(known, &place) != 0
                     ? dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                     : nullptr;
  void *found = module == nullptr ? nullptr : dlsym(module, "ggml_graph_plan");
  if (found == nullptr) {
    std::fprintf(stderr,
                 "mesh-server: no module of ggml for this CPU is loaded\n");
    std::abort();
  }
  return reinterpret_cast<plan_function>(found);
}

extern "C" ggml_cplan ggml_graph_plan(const ggml_cgraph *graph, int threads,
                                      ggml_threadpool *pool) {
  static const plan_function plan = find_plan();
  return plan(graph, threads, pool);
}
