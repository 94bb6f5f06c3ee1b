// Who looks before it sleeps, and when it stops to.
#include "check.h"
#include "lookout.h"

#include <cstdlib>

using namespace mesh;

// Sets GGML_MESH_LOOKOUT for as long as it is, and what had been allowed before
class allowed {
public:
    explicit allowed(const char * milliseconds) {
        const char * set = std::getenv(NAME);
        before = set == nullptr ? "0" : set;
        setenv(NAME, milliseconds, 1);
        lookout::allow();
    }
    ~allowed() {
        setenv(NAME, before.c_str(), 1);
        lookout::allow();
    }

private:
    static constexpr const char * NAME = "GGML_MESH_LOOKOUT";
    std::string before;
};

static long never() {
    return 0;
}

// How often it looks for what is there at the third time, and nobody else needs the processor
static int looks(lookout & one) {
    int count = 0;
    const auto began = one.look([&] { return ++count == 3; }, never);
    one.came(began);
    return count;
}

TEST(only_who_did_not_wait_long_looks_the_next_time) {
    const allowed looking("100");
    lookout one;
    CHECK(looks(one) == 0);
    CHECK(looks(one) == 3);
    one.rest();
    CHECK(looks(one) == 0);
    CHECK(looks(one) == 3);
}

TEST(who_looks_in_vain_sleeps_the_next_time) {
    const allowed looking("1");
    lookout one;
    one.came(lookout::clock::now());
    int count = 0;
    const auto began = one.look([&] { return ++count < 0; }, never);
    CHECK(count > 0);
    CHECK(lookout::clock::now() - began >= std::chrono::milliseconds(1));
    one.came(began);
    CHECK(looks(one) == 0);
}

TEST(who_takes_the_processor_from_others_rests_longer_and_longer) {
    const allowed looking("100");
    lookout one;
    auto now = lookout::clock::now();
    one.came(now);
    long displaced = 0;
    // How often it looks at this time, while somebody else has the processor in between
    const auto looks_at = [&](lookout::clock::time_point at) {
        int count = 0;
        one.look([&] { return ++count < 0; }, [&] { return ++displaced; }, at);
        return count;
    };
    for (auto rest = lookout::REST; rest < 8 * lookout::REST; rest *= 2) {
        CHECK(looks_at(now) == 1);
        CHECK(looks_at(now + rest - std::chrono::microseconds(1)) == 0);
        now += rest;
    }
    int count = 0;
    one.look([&] { return ++count == 3; }, never, now); // this time it gets what it looks for
    CHECK(count == 3);
    CHECK(looks_at(now) == 1);
    CHECK(looks_at(now + lookout::REST) == 1);
}

TEST(nobody_looks_unless_it_is_allowed) {
    const allowed none("0");
    lookout one;
    CHECK(looks(one) == 0);
    CHECK(looks(one) == 0);
    for (const char * odd : { "", "-1", "101", "10 ms", "x" }) {
        CHECK(thrown_by([&] { const allowed wrong(odd); }).find("a number of milliseconds up to 100, not `") !=
              std::string::npos);
    }
}
