// The trial of devices: right ones pass, odd ones are found, and words without sense do no harm.
#include "check.h"
#include "device_list.h"
#include "device_trial.h"
#include "odd_device.h"
#include "trial_words.h"

using namespace mesh;

typedef std::vector<std::string> lines;

static lines said_of(odd_device & odd, const lines & words, int code, double tolerance = 1) {
    lines said;
    CHECK(try_device(&odd.device, words, tolerance, [&](const std::string & line) { said.push_back(line); }) == code);
    return said;
}

static bool begins(const std::string & line, const std::string & with) {
    return line.rfind(with, 0) == 0;
}

// One of each, with the kernels that models use
static const lines EACH = { "mul_mat:q4_0:64", "mul_mat:Q6_K:256", "mul_mat:f16:96", "mul_mat_id:q8_0:64:4:2",
    "get_rows:f32:64", "set_rows:f16:64", "set_rows:q8_0:64", "rms_norm:64", "norm:64", "rope:64:3:32",
    "flash_attn:f16:f16:64:64:6:3", "attention:f16:f16:64:64:6:3", "glu:64", "activation:64", "sums:64", "route:8:2",
    "ssm_conv:4:16", "ssm_scan:16:1:8:1", "wkv6:64:2", "wkv7:64:2", "delta:64:2:4" };

TEST(a_device_that_computes_as_the_cpu_passes_its_trial) {
    odd_device right(oddity::none);
    const lines said = said_of(right, EACH, 0);
    CHECK(said.size() == 2 * EACH.size() + 1);
    for (size_t i = 0; i < EACH.size(); i++) {
        CHECK(said[2 * i] == "trying " + EACH[i]);
        CHECK(begins(said[2 * i + 1], "right " + EACH[i] + " "));
    }
    CHECK(said.back() == "tried " + std::to_string(EACH.size()));
}

TEST(a_device_that_computes_something_else_is_found_by_each_operation) {
    const std::pair<std::string, ggml_op> cases[] = { { "mul_mat:q4_0:64", GGML_OP_MUL_MAT },
        { "rms_norm:64", GGML_OP_MUL }, { "rope:64:3:32", GGML_OP_ROPE }, { "sums:64", GGML_OP_CONT },
        { "flash_attn:f16:f16:64:64:6:3", GGML_OP_FLASH_ATTN_EXT }, { "ssm_scan:16:1:8:1", GGML_OP_SSM_SCAN } };
    for (const auto & one : cases) {
        odd_device wrong(oddity::wrong, one.second);
        const lines said = said_of(wrong, { one.first, "get_rows:f32:64" }, 2);
        CHECK(said.size() == 5 && begins(said[1], "wrong " + one.first + " "));
        CHECK(begins(said[3], "right get_rows:f32:64 ") && said[4] == "tried 2");
    }
}

TEST(a_device_that_fails_lacks_something_or_cannot_be_opened_says_so) {
    odd_device fails(oddity::fails, GGML_OP_ROPE);
    CHECK(said_of(fails, { "rope:64:3:32" }, 2)[1] == "failed rope:64:3:32 GGML status: failed" ||
          begins(said_of(fails, { "rope:64:3:32" }, 2)[1], "failed rope:64:3:32 "));
    odd_device lacks(oddity::lacks, GGML_OP_SET_ROWS);
    CHECK(said_of(lacks, { "set_rows:f16:64" }, 0)[1] == "lacks set_rows:f16:64 SET_ROWS");
    odd_device unopened(oddity::unopened);
    CHECK(said_of(unopened, { "rms_norm:64" }, 2) == lines{ "failed device it cannot be opened" });
}

// By a device of its own: whether a CPU's fast kernel rounds otherwise than its plain one depends on the release
TEST(errors_are_compared_with_what_is_taken) {
    odd_device near(oddity::inexact, GGML_OP_ROPE);
    const lines words = { "rope:64:3:32", "rms_norm:512" };
    CHECK(begins(said_of(near, words, 0)[1], "right rope:64:3:32 "));
    const lines said = said_of(near, words, 2, 0);
    CHECK(begins(said[1], "wrong rope:64:3:32 "));
    CHECK(said[3] == "right rms_norm:512 0.0e+00");
}

TEST(words_without_sense_are_unknown) {
    odd_device right(oddity::none);
    for (const std::string word : { "", "nothing:1", "mul_mat", "mul_mat:q4_k", "mul_mat:q4_k:100", "mul_mat:none:256",
             "mul_mat:q8_k:256", "mul_mat:f32:0", "mul_mat:f32:-1", "mul_mat:f32:999999",
             "mul_mat:f32:9999999999999999999999", "mul_mat:f32:64:1", "rope:64:1:65", "rope:64:1:3",
             "attention:f16:f16:64:64:3:2", "attention:f16:q8_0:64:64:2:2", "ssm_conv:1:8", "ssm_scan:16:64:3:2",
             "delta:64:2:3", "rms_norm:", "rms_norm:1x", "wkv7:262144:262144", "rope:262144:262144:2",
             "flash_attn:f16:f16:262144:262144:262144:262144" }) {
        CHECK(said_of(right, { word }, 0)[1] == "unknown " + word);
    }
}

TEST(devices_are_listed_with_what_they_are) {
    const lines listed = list_devices();
    CHECK(!listed.empty());
    bool found = false;
    for (const auto & line : listed) {
        found = found || begins(line, "device CPU cpu ");
    }
    CHECK(found);
}
