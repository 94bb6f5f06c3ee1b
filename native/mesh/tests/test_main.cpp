// mesh-tests [NAME]: all tests, or those whose name has this in it. Each prints its name and what came of it.
#include "check.h"
#include "lookout.h"

#include <csignal>
#include <cstdio>
#include <cstring>

#include <unistd.h>

int main(int argc, char ** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    mesh::choose_waiting(); // all of them are to pass either way
    int failed = 0;
    for (const auto & test : mesh::all_tests()) {
        if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) {
            continue;
        }
        const std::string why = mesh::thrown_by(test.run);
        failed += why.empty() ? 0 : 1;
        std::printf("%s %s%s%s\n", why.empty() ? "passed" : "FAILED", test.name, why.empty() ? "" : ": ", why.c_str());
        std::fflush(stdout);
    }
    _exit(failed > 0 ? 1 : 0); // connections are for as long as the process is
}
