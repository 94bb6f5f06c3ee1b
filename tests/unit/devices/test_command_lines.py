"""Command lines and environment of the children."""

from dataclasses import replace

from meshd.base.wakeful_loop import Waiting
from meshd.devices import command_lines
from meshd.devices.command_lines import Head, count_of, totals_of
from meshd.model.drafts import Drafts

HEAD = Head("m.gguf", "l.sock", "m", ("a:1", "b:2"), ("-c", "8192"), "none", ("--ctx-size", "4096"))


def test_a_mesh_server_gets_its_lease_and_descriptors() -> None:
    ends = {"head": 5, "neighbours": 7, "report": 8}
    argv = command_lines.mesh_server(
        "mesh", devices=["CPU", "CUDA0"], threads=3, memory=[1, 2], weights=6, **ends
    )
    assert " ".join(argv) == (
        "mesh --fd 5 --threads 3 --device CPU --device CUDA0 --memory 1,2 --weights-fd 6 "
        "--neighbours-fd 7 --report-fd 8"
    )
    bare = command_lines.mesh_server("mesh", devices=["CPU"], threads=1, memory=[1], weights=-1, **ends)
    assert "--weights-fd" not in bare


def test_a_head_gets_the_plan_and_the_users_words_last() -> None:
    argv = command_lines.llama_server("llama", HEAD)
    assert argv[-2:] == ["--ctx-size", "4096"]
    text = " ".join(argv)
    for part in ("-m m.gguf", "--host l.sock", "--alias m", "--rpc a:1,b:2", "-c 8192", "-lm none", "-nr"):
        assert part in text
    assert "--cache-ram 0" in text
    assert "--no-warmup" in argv
    assert argv.index("-nr") < argv.index("--ctx-size")


def test_threads_are_given_where_llama_cpp_would_take_more_than_it_may() -> None:
    assert "--threads" not in command_lines.llama_server("llama", HEAD)
    argv = command_lines.llama_server("llama", replace(HEAD, threads=2, llama_args=("--threads", "3")))
    assert argv[argv.index("--threads") + 1] == "2"
    assert argv[-2:] == ["--threads", "3"], "the user's words come last"


def test_alone_there_is_no_rpc() -> None:
    alone = Head("m", "s", "a", (), (), "none", ())
    argv = command_lines.llama_server("llama", alone)
    assert "--rpc" not in argv
    assert "--no-warmup" in argv  # the first token, which is asked for, is the warm-up


def test_what_images_need_is_computed_by_the_head_alone() -> None:
    assert "--mmproj" not in command_lines.llama_server("llama", HEAD)
    argv = command_lines.llama_server("llama", replace(HEAD, mmproj="p.gguf"))
    assert "--mmproj p.gguf --no-mmproj-offload" in " ".join(argv), "its default is the plan's first device"
    for own in ("-mmdev", "--mmproj-device"):
        argv = command_lines.llama_server("llama", replace(HEAD, mmproj="p.gguf", llama_args=(own, "CUDA0")))
        assert "--no-mmproj-offload" not in argv and argv[-2:] == [own, "CUDA0"]


def test_drafts_are_options_of_llama_server_before_the_users_words() -> None:
    drafting = replace(HEAD, drafts=Drafts(16, 6), draft_model="d.gguf")
    text = " ".join(command_lines.llama_server("llama", drafting))
    assert "--spec-type ngram-map-k,draft-simple " in text
    assert "--spec-ngram-map-k-size-m 16 " in text
    assert "--spec-draft-model d.gguf --spec-draft-n-max 6 " in text
    assert " -devd none " in text, "else the workers would compute it"
    assert text.endswith("--ctx-size 4096")
    assert "--spec" not in " ".join(command_lines.llama_server("llama", HEAD))
    free = command_lines.drafting(Drafts(8), "d.gguf")
    assert free[:2] == ["--spec-type", "ngram-map-k"]
    assert "d.gguf" not in free


def test_the_users_override_replaces_the_plans() -> None:
    plan = ("-c", "1", "-ot", "token_embd.weight=CPU", "-ngl", "99")
    assert command_lines.without_overridden(plan, ("-np", "2")) == plan
    for option in ("-ot", "--override-tensor"):
        assert command_lines.without_overridden(plan, (option, "x=CPU")) == ("-c", "1", "-ngl", "99")
    assert command_lines.without_overridden(("-c", "1"), ("-ot", "x=CPU")) == ("-c", "1")


def test_descriptors_of_a_head_go_by_environment() -> None:
    given = command_lines.mesh_head_environment(
        module="/m.so", sockets=[3, 4], lent=[[7]], weights=5, report=6
    )
    assert given == command_lines.CALM_THREADS | command_lines.LARGE_PAGES | {
        "LD_PRELOAD": "/m.so",
        "GGML_MESH_WAITING": "sleep",
        "GGML_BACKEND_PATH": "/m.so",
        "GGML_MESH_FDS": "3,4",
        "GGML_MESH_DEVICES": "1",
        "GGML_MESH_MEMORY": "7",
        "GGML_MESH_WEIGHTS_FD": "5",
        "GGML_MESH_REPORT_FD": "6",
        "GGML_MESH_ACTIVATIONS": "f32",
        "GGML_MESH_SUMS": "f32",
        "GGML_MESH_GRACE": "0",
    }
    halved = command_lines.mesh_head_environment(
        module="/a b/m.so", sockets=[], lent=[], weights=5, report=6, activations="f16", grace=1.5
    )
    assert "LD_PRELOAD" not in halved, "the linker would read two names"
    assert (halved["GGML_MESH_ACTIVATIONS"], halved["GGML_MESH_SUMS"]) == ("f16", "f16")
    assert halved["GGML_MESH_GRACE"] == "2"


def test_programs_of_the_mesh_protocol_are_told_how_to_wait() -> None:
    for waiting in Waiting:
        expected = command_lines.CALM_THREADS | {"GGML_MESH_WAITING": waiting.value}
        assert command_lines.mesh_server_environment(waiting) == expected
        environment = command_lines.mesh_head_environment(
            module="/m.so", sockets=[3, 4], lent=[[7, 8], [9]], weights=5, report=6, waiting=waiting
        )
        assert environment["GGML_MESH_WAITING"] == waiting.value
        assert environment["GGML_MESH_FDS"] == "3,4"
        assert environment["GGML_MESH_DEVICES"] == "2,1"
        assert environment["GGML_MESH_MEMORY"] == "7,8,9"


def test_only_plain_digits_are_a_count() -> None:
    assert [count_of(text) for text in ("0", "12", "9" * 19)] == [0, 12, int("9" * 19)]
    assert [count_of(text) for text in ("", "-1", "²", "٣", "1 ", "9" * 20, "9" * 5000)] == [None] * 7


def test_totals_are_three_counts() -> None:
    assert totals_of(["3", "1", "40"]) == (3, 1, 40)
    wrong: list[list[str]] = [[], ["3", "1"], ["3", "1", "40", "2"], ["3", "-1", "40"], ["3", "1", ""]]
    assert [totals_of(texts) for texts in wrong] == [None] * len(wrong)
