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

// How often it looks for what is there at the third time
static int looks(lookout & one) {
    int count = 0;
    const auto began = one.look([&] { return ++count == 3; });
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
    const auto began = one.look([&] { return ++count < 0; });
    CHECK(count > 0);
    CHECK(lookout::clock::now() - began >= std::chrono::milliseconds(1));
    one.came(began);
    CHECK(looks(one) == 0);
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
