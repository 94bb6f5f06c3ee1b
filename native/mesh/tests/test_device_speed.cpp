// How long layers take on a device: figures that can be compared, and none where there are none to be had.
#include "check.h"
#include "device_speed.h"
#include "odd_device.h"

#include "ggml-cpp.h"

#include <cstdio>
#include <stdexcept>

using namespace mesh;

typedef std::vector<std::string> lines;

// With a sanitizer a device is a hundred times slower, and what it computes is as right
static const timing_limits PATIENT = { 1e6, std::chrono::hours(1) };

static lines said_of(odd_device & odd, const lines & kinds, int code, const timing_limits & limits = PATIENT) {
    const ggml_backend_ptr backend(ggml_backend_dev_init(&odd.device, nullptr));
    ggml_backend_cpu_set_n_threads(backend.get(), 1);
    std::vector<timed_layers> parsed;
    for (const auto & kind : kinds) {
        parsed.push_back(parse_timed(kind));
    }
    lines said;
    CHECK(
        time_device(backend.get(), 1, parsed, [&](const std::string & line) { said.push_back(line); }, limits) == code);
    return said;
}

// Nanoseconds of a layer of this kind with so many tokens; 0: there is no such line
static long long took(const lines & said, int kind, int tokens) {
    const std::string begin = "took " + std::to_string(kind) + " " + std::to_string(tokens) + " ";
    for (const auto & line : said) {
        if (line.rfind(begin, 0) == 0) {
            return std::stoll(line.substr(begin.size()));
        }
    }
    return 0;
}

static bool is_wrong(const std::string & text) {
    try {
        parse_timed(text);
        return false;
    } catch (const std::invalid_argument &) {
        return true;
    }
}

TEST(a_layer_is_timed_with_one_token_and_with_several) {
    odd_device cpu(oddity::none);
    const std::string small = "mul_mat:f16:256:256";
    const std::string large = "mul_mat:f16:256:8192";
    const lines said = said_of(cpu, { "8=" + small, "2=" + large }, 0);
    CHECK(said.back() == "timed 2");
    for (const int tokens : { 1, 4, 32, 128, 512 }) {
        CHECK(took(said, 0, tokens) > 0);
        CHECK(took(said, 1, tokens) > took(said, 0, tokens)); // it is 32 times as much
    }
    CHECK(took(said, 1, 512) > took(said, 1, 1));
}

TEST(each_operation_of_a_layer_can_be_timed) {
    odd_device cpu(oddity::none);
    const lines said = said_of(cpu,
        { "2=rms_norm:64,mul_mat:q4_0:64:96,rope:64:3:32,set_rows:f16:64,flash_attn:f16:f16:64:64:6:3:512,glu:64,sums:"
          "64,"
          "mul_mat_id:q8_0:64:32:8:2,route:8:2" },
        0);
    CHECK(took(said, 0, 1) > 0 && took(said, 0, 128) > 0);
}

TEST(a_longer_cache_takes_longer) {
    odd_device cpu(oddity::none);
    const std::string word = "4=flash_attn:f16:f16:64:64:8:8:";
    const lines said = said_of(cpu, { word + "256", word + "8192" }, 0);
    CHECK(took(said, 1, 1) > took(said, 0, 1)); // it is 32 times as long
}

// All of them would take too long for so many tokens, and one of them says as much
TEST(many_caches_are_timed_with_many_tokens_as_well) {
    odd_device cpu(oddity::none);
    const lines said = said_of(cpu, { "32=flash_attn:f16:f16:64:64:2:2:256" }, 0);
    CHECK(took(said, 0, 512) > took(said, 0, 1) && took(said, 0, 1) > 0);
    CHECK(odd_device::nodes.front() > 31 && odd_device::nodes.back() * 32 == odd_device::nodes.front());
}

TEST(what_would_take_too_long_has_no_time) {
    odd_device cpu(oddity::none);
    const timing_limits hurried = { 1e9, std::chrono::nanoseconds(1) };
    const lines said = said_of(cpu, { "1=rms_norm:64" }, 0, hurried);
    CHECK(took(said, 0, 1) > 0 && took(said, 0, 4) == 0 && said.size() == 2);
}

// Or they would be read from the processor's caches, as no model does
TEST(each_run_is_with_other_experts) {
    odd_device cpu(oddity::none);
    said_of(cpu, { "1=mul_mat_id:q8_0:64:32:10:2" }, 0);
    CHECK(odd_device::experts == std::set<int32_t>({ 0, 2, 4, 6, 8 }));
}

TEST(what_a_device_does_not_compute_has_no_time) {
    odd_device lacks(oddity::lacks, GGML_OP_ROPE);
    const lines said = said_of(lacks, { "1=rope:64:3:32", "1=rms_norm:64" }, 0);
    CHECK(took(said, 0, 1) == 0 && took(said, 1, 1) > 0 && said.back() == "timed 2");
    odd_device fails(oddity::fails, GGML_OP_ROPE);
    CHECK(said_of(fails, { "1=rope:64:3:32" }, 2) == lines{ "failed 0" });
}

TEST(weights_beyond_what_is_tried_have_no_time) {
    odd_device cpu(oddity::none);
    CHECK(said_of(cpu, { "1=mul_mat:f32:131072:131072" }, 0) == lines{ "timed 1" });
    CHECK(said_of(cpu, { "1=mul_mat_id:f32:131072:131072:131072:8" }, 0) == lines{ "timed 1" });
}

TEST(words_that_make_no_sense_are_refused) {
    for (const char * text :
        { "", "=", "1", "0=rms_norm:64", "33=rms_norm:64", "1=", "1=nothing:64", "1=mul_mat:q4_0:64",
            "1=mul_mat:q4_0:65:64", "1=mul_mat:q4_0:64:0", "1=rms_norm:64,", "1=flash_attn:f16:f16:64:64:6:3",
            "1=flash_attn:f16:f16:64:64:6:3:32769", "1=mul_mat_id:q8_0:64:32:8", "-1=rms_norm:64" }) {
        CHECK(is_wrong(text));
    }
    std::string many = "1=rms_norm:64";
    for (int i = 0; i < 64; i++) {
        many += ",rms_norm:64";
    }
    CHECK(is_wrong(many));
}
