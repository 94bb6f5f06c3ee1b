"""The command line itself: verbs, exit codes, help."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd import __version__
from meshd.cli import main
from meshd.cli.main import GROUPS, VERBS
from meshd.cli.options import Parser

from tests.tokens import token

from .shell import meshd, raises_nothing_else, refused

NAMES = [verb.name for verb in VERBS]


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_verb(argv: list[str]) -> None:
    ran = meshd(*argv)
    assert (ran.code, ran.err) == (0, "")
    parts = [part.splitlines() for part in ran.out.split("\n\n")]
    groups = {
        lines[0].removesuffix(":"): lines[1:] for lines in parts if lines[0].removesuffix(":") in GROUPS
    }
    assert tuple(groups) == GROUPS
    listed = [line.split()[0] for lines in groups.values() for line in lines]
    assert listed == NAMES


def test_nothing_at_all_is_no_command() -> None:
    ran = meshd()
    assert (ran.code, ran.out) == (2, "") and "usage: meshd COMMAND" in ran.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["staus"], "try `meshd status`"),
        (["xyzzy"], "unknown command `xyzzy`"),
        (["run", "model.gguf"], "try `meshd serve --model FILE|NAME`"),
        (["ps"], "try `meshd status`"),
        (["pull", "x"], "try `meshd model pull NAME`"),
        (["--json"], "put a command first"),
        (["--vesion"], "did you mean `--version`?"),
        (["versoin"], "try `meshd version`"),
        (["invite", "ls", "--expires", "1h"], "`--expires` does not apply here"),
        (["invite", "--uses", "3", "ls"], "`--uses` is for a new invite and cannot be combined with `ls`"),
        (["status", "--bogus"], "unrecognized arguments: --bogus"),
        (["status", "extra"], "unrecognized arguments: extra"),
        (["status", "--js"], "unrecognized arguments: --js"),  # options may not be cut short
        (["ping"], "`meshd ping` needs PEER"),
        (["ping", "a", "--count", "0"], "`--count 0`: expected a whole number"),
        (["ping", "a", "--count", "x"], "`--count x`: expected a whole number"),
        (["ping", "a", "--timeout", "61"], "from 1 to 60"),
        (["invite", "--expires", "soon"], "`--expires soon`: expected a duration"),
        (["invite", "--uses", "0"], "from 1 to 1000"),
        (["invite", "--role", "king"], "`--role king`: expected one of"),
        (["invite", "lss"], "did you mean `meshd invite ls`?"),
        (["invite", "revoke"], "`meshd invite revoke` needs ID"),
        (["revoke"], "`meshd revoke` needs PEER"),
        (["mesh"], "`meshd mesh` needs one of export | import"),
        (["config"], "needs one of show | init"),
        (["config", "shw"], "did you mean `meshd config show`?"),
        (["native"], "needs one of build | info"),
        (["native", "build", "--backend", "abacus"], "`--backend abacus`: expected one of auto, cpu"),
        (["bench"], "needs one of load|nodes|latency|rpc|transport"),
        (["bench", "transport", "--ways", "webrtc,pigeon"], "unknown link `pigeon`"),
        (["bench", "transport", "--only", "half"], "--only"),
        (["bench", "everything"], "unknown measurement `everything`"),
        (["bench", "rpc", "--pairs", "0"], "from 1 to 100"),
        (["bench", "nodes", "--without", "push"], "`--without` of `meshd bench` is gone"),
        (["bench", "latency", "--proxy", "6001:5001"], "`--proxy` of `meshd bench` is gone"),
        (["bench", "nodes", "--svg", "nodes.svg"], "`--svg` of `meshd bench` is gone"),
        (["bench", "rpc", "--workers", "4"], "`meshd bench rpc` has no option `--workers`"),
        (["bench", "trace"], "unknown measurement `trace`"),
        (["bench", "transport", "--pairs", "2"], "`meshd bench transport` has no option `--pairs`"),
        (["demo", "--latency", "20,-1"], "cannot use `--latency 20,-1`"),
        (["logs", "--lines", "-1"], "expected"),
        (["stop", "--timeout", "x"], "expected a whole number"),
        (["serve"], "`meshd serve` needs a model"),
        (["serve", "--port", "x"], "`--port x`: expected a whole number from 0 to 65535"),
        (["serve", "--port", "65536"], "from 0 to 65535"),
        (["serve", "--min-workers", "-1"], "expected"),
        (["serve", "--rpc", "nowhere"], "HOST:PORT such as 192.168.1.7:50052"),
        (["serve", "--load-mode", "fast"], "one of auto, mmap"),
        (["serve", "--tensor-split", "a,b"], "a number not below 0"),
        (["worker", "--memory", "lots"], "a size such as 8G"),
        (["worker", "--listen", "here"], "HOST:PORT such as 0.0.0.0:17430"),
        (["worker", "--links", "tcp,pigeon"], "one of tcp, webrtc, quic, relay"),
        (["worker", "--log-format", "xml"], "one of text, json"),
        (["worker", "--log-level", "loud"], "one of debug, info"),
        (["worker", "--name", "a b"], "letters (a to z, A to Z), digits"),
        (["worker", "--name", "Küche"], "letters (a to z, A to Z), digits"),
        (["worker", "--port", "8090"], "unrecognized arguments"),
        (["worker", "--", "-np", "1"], "unrecognized arguments"),
        (["worker", "--embeddings"], "run `meshd worker --help`"),
        (["serve", "--modle", "x"], "did you mean `--model`?"),
        (["serve", "--modle=x"], "did you mean `--model`?"),
        (["serve", "--model", "x", "--embeddings"], "after `--`: `meshd serve … -- --embeddings`;"),
        (["serve", "--model", "x", "-c", "4096"], "after `--`: `meshd serve … -- -c`;"),
        (["serve", "--model", "mesh:570760e3492da2f0"], "at least 32 digits: `meshd model ls --json`"),
        (["serve", "model.gguf"], "give a model with its option: `--model model.gguf`"),
        (["status", "extra"], "hint: run `meshd status --help`"),
        (["worker", "--memory", "10"], "at least 1M; without a unit it is in bytes"),
        (["serve", "--model", "http://x/y.gguf"], "download the file first, then give its path"),
        (["serve", "--model", "https://huggingface.co/a/b-GGUF"], "give the model's name: `hf:a/b-GGUF`"),
        (["serve", "--port", "x"], "run `meshd serve --help` for its options"),
        (["serve", "--model", "x", "--memory", "8G"], "`--memory` is an option of `meshd worker`; for"),
        (["status", "--listen", "x"], "an option of `meshd worker`, `meshd serve` and `meshd client`"),
        (["serve", "--model", "x", "--ctx", "9"], "did you mean `--ctx-size`?"),
        (["invite", "--uses", "0"], "run `meshd invite --help` for its options"),
        (["model"], "`meshd model` needs one of ls | pull | show | verify | rm"),
        (["model", "pul", "x"], "did you mean `meshd model pull`?"),
        (["model", "frobnicate"], "choose one of ls, pull, show, verify, rm"),
        (["model", "pull", "x", "--rat", "1"], "did you mean `--rate`?"),
        (["invite", "--ttl", "1h"], "meshd invite: unrecognized arguments: --ttl"),
        (["invite", "--use", "3"], "did you mean `--uses`?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_does_not_parse_ends_with_2(argv: list[str], words: str) -> None:
    refused(meshd(*argv), 2, words)


@pytest.mark.parametrize("verb", ["worker", "serve --model m.gguf", "client"])
@pytest.mark.parametrize("form", ["--join {0} {1}", "--join={0} {1}", "--join {0} {1} --name desk {2}"])
def test_no_part_of_a_token_in_pieces_is_shown(verb: str, form: str) -> None:
    whole = token()
    pieces = whole[:60], whole[60:120], whole[120:]
    ran = meshd(*verb.split(), *form.format(*pieces).split())
    refused(ran, 2, "the invite was split at a space or line break", "put it in quotes", "`--join @FILE`")
    assert not any(piece[:8] in ran.err for piece in pieces)


def test_what_follows_a_whole_token_is_no_piece_of_it() -> None:
    refused(meshd("serve", "--join", token(), "m.gguf"), 2, "give a model with its option: `--model m.gguf`")
    ran = meshd("worker", "--join", token()[:60], "--bogus", "x")
    refused(ran, 2, "unrecognized arguments: --bogus x")


def test_a_token_without_its_option_is_not_shown() -> None:
    for argv in (["worker", token()], ["worker", token()[:60], token()[60:]]):
        ran = meshd(*argv)
        refused(ran, 2, "hint: ", "`--join @FILE`")
        assert token()[:60] not in ran.err and token()[60:90] not in ran.err
    ran = meshd("status", token())
    refused(ran, 2, "takes no invite")
    assert token()[:60] not in ran.err
    refused(meshd("accept", "meshdreply1ab", "cd"), 2, "the code was split at a space or line break")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--model", "/nonexistent/m.gguf"], "cannot read model file"),
        (["serve", "--model", "nonsuch"], "there is no model `nonsuch` on this machine"),
        (["serve", "--model", __file__, "--host", "0.0.0.0"], "would answer anyone"),
        (["worker", "--name", "raspberrypi"], "`raspberrypi` cannot be a node's name"),
        (["worker", "--join", "@/nonexistent/token"], "cannot read the invite"),
        (["worker", "--config", "/nonexistent.toml"], "cannot read configuration"),
        (["status"], "no daemon is running for"),
        (["peers"], "no daemon is running for"),
        (["ping", "garage"], "no daemon is running for"),
        (["stop"], "no daemon is running for"),
        (["logs"], "no logs"),
        (["logs", "rpc-server"], "no log named `rpc-server`"),
        (["invite"], "there is no node in"),
        (["invite", "ls"], "there is no node in"),
        (["invite", "revoke", "00"], "there is no node in"),
        (["revoke", "garage"], "there is no node in"),
        (["leave"], "there is no node in"),
        (["mesh", "export"], "there is no node in"),
        (["mesh", "import", "/nonexistent"], "cannot read the backup"),
        (["native", "info"], "there is no native build"),
        (["demo", "/nonexistent.gguf"], "there is no model file"),
        (["bench", "rpc", "--model", "/nonexistent.gguf"], "there is no model file"),
        (["config", "show", "--config", "/nonexistent.toml"], "cannot read configuration"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_ends_with_1(argv: list[str], words: str) -> None:
    refused(meshd(*argv), 1, words)


@pytest.mark.parametrize("verb", NAMES)
def test_every_verb_has_help(verb: str) -> None:
    ran = meshd(verb, "--help")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("argv", [["serve"], ["invite", "ls"]])
def test_help_of_a_verb_is_what_its_option_prints(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert meshd(*argv, "--help").code == 0
    wanted = capsys.readouterr()
    assert meshd("help", *argv).code == 0
    assert capsys.readouterr() == wanted
    assert wanted.out.startswith(f"usage: meshd {' '.join(argv)}") and not wanted.err
    refused(meshd("help", "serv"), 2, "unknown command `serv`", "try `meshd serve`")


def test_help_says_what_each_action_does() -> None:
    parser = Parser(prog="meshd model")
    next(verb for verb in VERBS if verb.name == "model").load().add_arguments(parser)
    lines = parser.format_help().splitlines()
    assert "  ls          List the models on this machine and in the mesh." in lines


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_every_verb_explains_itself_and_its_options(verb: main.Verb) -> None:
    assert verb.load().__doc__ and verb.help
    parser = verb.parser()
    parsers = [parser, *parser.below.values()]
    assert all(action.help or action.metavar for one in parsers for action in one.own)


def test_the_version_names_protocol_and_pin() -> None:
    ran = meshd("--version")
    assert ran.code == 0 and meshd("version") == ran
    first, second, third, fourth = ran.out.splitlines()
    assert first == f"meshd {__version__}"
    assert second.startswith("wire protocol ") and second.split()[-1].isdigit()
    assert third.startswith("native llama.cpp ") and " sources " in third
    assert fourth.startswith("chat page ")


@given(argv=st.lists(st.sampled_from([*NAMES, "ls", "--json", "-f", "x"]) | st.text(max_size=6), max_size=4))
def test_any_command_line_has_an_exit_code(argv: list[str]) -> None:
    harmless = {"status", "peers", "ping", "invite", "revoke"}
    if argv and argv[0] in NAMES and argv[0] not in harmless:
        argv = argv[1:]
        if argv and argv[0] in NAMES and argv[0] not in harmless:
            return
    raises_nothing_else(meshd(*argv))


@pytest.mark.parametrize("verb", ["", *(verb.name for verb in VERBS)])
def test_help_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = meshd(*verb.split(), "--help").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_examples_that_are_too_long_for_a_line_are_broken_before_their_explanations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "A sentence\nof two lines.\n\nexamples:\n  meshd a              explained\n  meshd b"
    for columns, examples in (
        ("80", ["  meshd a              explained", "  meshd b"]),
        ("30", ["  meshd a", "      explained", "  meshd b"]),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        shown = Parser(prog="meshd", description=text).format_help().splitlines()
        first = shown.index("A sentence of two lines.")
        assert shown[first + 1 : first + 3 + len(examples)] == ["", "examples:", *examples]


@pytest.mark.parametrize(
    "argv", [["config", "show"], ["worker"], ["serve", "--model", "m.gguf"]], ids=" ".join
)
def test_in_a_directory_that_is_gone_it_says_so(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    refused(meshd(*argv), 1, "the current directory is gone")
