// A test is a function that throws when something is not as it should be.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace mesh {

struct test_case {
    const char * name;
    void (*run)();
};

inline std::vector<test_case> & all_tests() {
    static std::vector<test_case> tests;
    return tests;
}

struct registration {
    registration(const char * name, void (*run)()) { all_tests().push_back({ name, run }); }
};

inline void check_that(bool holds, const char * what, const char * file, int line) {
    if (!holds) {
        throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
    }
}

// What a function throws, or "" if nothing
inline std::string thrown_by(const std::function<void()> & function) {
    try {
        function();
    } catch (const std::exception & error) {
        return error.what();
    }
    return "";
}

// Runs the test of this name again in a process of its own, where no threads of others take processor time. True in
// that process, which is to do it; false in this one, where it is done. Throws what it threw.
bool runs_alone(const char * name);

} // namespace mesh

#define TEST(name)                                                                                                     \
    static void name();                                                                                                \
    static const registration registered_##name(#name, name);                                                          \
    static void name()

#define CHECK(condition) check_that(condition, #condition, __FILE__, __LINE__)
