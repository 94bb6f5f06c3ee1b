// mesh-tests [NAME]: all tests, or those whose name has this in it. Each prints its name and what came of it.
#include "check.h"
#include "lookout.h"

#include <csignal>
#include <cstdio>
#include <cstring>

#include <unistd.h>

static std::string program;
static std::string chosen; // part of the names of the tests to run; "": of all

bool mesh::runs_alone(const char * name) {
    if (chosen == name) {
        return true;
    }
    FILE * output = popen(("'" + program + "' " + name).c_str(), "r");
    if (output == nullptr) {
        throw std::runtime_error("it cannot be started alone");
    }
    std::string said;
    char part[512];
    while (std::fgets(part, sizeof part, output) != nullptr) {
        said += part;
    }
    if (pclose(output) != 0) {
        throw std::runtime_error("alone: " + (said.empty() ? "it was ended" : said.substr(0, said.find('\n'))));
    }
    return false;
}

int main(int argc, char ** argv) {
    program = argv[0];
    chosen = argc > 1 ? argv[1] : "";
    std::signal(SIGPIPE, SIG_IGN);
    mesh::choose_waiting(); // all of them are to pass either way
    int failed = 0;
    for (const auto & test : mesh::all_tests()) {
        if (std::strstr(test.name, chosen.c_str()) == nullptr) {
            continue;
        }
        const std::string why = mesh::thrown_by(test.run);
        failed += why.empty() ? 0 : 1;
        std::printf("%s %s%s%s\n", why.empty() ? "passed" : "FAILED", test.name, why.empty() ? "" : ": ", why.c_str());
        std::fflush(stdout);
    }
    _exit(failed > 0 ? 1 : 0); // connections are for as long as the process is
}
