"""The lines of logs that a report shows."""

import os
from pathlib import Path

import pytest
from meshd.report.logs import CHILD_BYTES, MOST_CHILDREN, MOST_LINE_CHARS, OWN_BYTES, excerpts

STAMP = "2026-11-27T09:28:18.128628Z "
SHOWN = (
    "ggml_cuda_init: found 1 CUDA devices (Total VRAM: 143771 MiB):",
    "  Device 0: NVIDIA H200, compute capability 9.0, VMM: yes",
    "CUDA error: out of memory",
    "/x/ggml-cuda.cu:92: GGML_ASSERT(a == b) failed",
    "0.03.058.568 I print_info: arch             = llama",
    "0.03.058.568 I srv    load_model: loading model '/srv/models/smollm2.gguf'",
    "0.02.968.067 E load_model: failed to load model, 'x.gguf'",
    "mesh: lost MESH0: it ended",
    "[meshd] ended, exit code 1",
    "llama-server: error while loading shared libraries: libcuda.so.1: cannot open shared object file",
    "#3  0x00007f ggml_abort () from libggml-base.so",
)
LEFT_OUT = (
    "0.00.016.937 I llama_model_loader: - kv   2: general.name str = a planted name",
    "0.00.016.937 I print_info: general.name     = a planted name",
    "0.03.058.568 I slot print_timing: id  3 | task 0 | prompt eval time = 33.01 ms",
    "0.03.058.568 I srv  operator(): got exception: parse error: last read: 'a planted prompt'",
    "0.03.058.568 I srv  log_server_r: request: out of memory, a planted prompt",
    "a planted prompt with the words out of memory",
    "chat template, example_format: 'a planted template'",
)


def one_of(folder: Path, name: str) -> tuple[tuple[str, ...], int]:
    [found] = [excerpt for excerpt in excerpts(folder) if excerpt.name == name]
    return found.lines, found.left_out


@pytest.mark.parametrize("line", SHOWN)
@pytest.mark.parametrize("stamp", ["", STAMP])
def test_lines_about_loads_and_failures_are_shown(tmp_path: Path, stamp: str, line: str) -> None:
    (tmp_path / "llama-server.log").write_text(f"{stamp}{line}\n")
    assert one_of(tmp_path, "llama-server") == ((f"{stamp}{line}",), 0)


@pytest.mark.parametrize("line", LEFT_OUT)
@pytest.mark.parametrize("stamp", ["", STAMP])
def test_other_lines_are_counted(tmp_path: Path, stamp: str, line: str) -> None:
    (tmp_path / "llama-server.log").write_text(f"{stamp}{line}\n")
    assert one_of(tmp_path, "llama-server") == ((), 1)


@pytest.mark.parametrize(
    "sign", ["common_params_print_info: verbosity = 5 (adjust)", 'request: {"prompt": "x"}']
)
def test_a_log_with_requests_is_left_out(tmp_path: Path, sign: str) -> None:
    (tmp_path / "llama-server.log").write_text(f"{SHOWN[0]}\n{sign}\nmesh: a line of a prompt\n")
    assert one_of(tmp_path, "llama-server") == ((), 3)


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP}[warning  ] library_said area=log library=aiohttp.server why='a planted prompt'",
        f'{{"area": "log", "library": "aiohttp.server", "why": "a planted prompt", "event": "library_said", '
        f'"timestamp": "{STAMP.strip()}"}}',
    ],
)
def test_words_of_libraries_are_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "meshd.log").write_text(f"{line}\n")
    [shown], _ = one_of(tmp_path, "meshd")
    assert shown == f"{STAMP}library_said library=aiohttp.server (its text is left out)"


def test_the_end_is_shown_after_the_file_before_it(tmp_path: Path) -> None:
    (tmp_path / "meshd.log.1").write_text("older\n")
    (tmp_path / "meshd.log").write_text("newer\nnewest without an end")
    assert one_of(tmp_path, "meshd") == (("older", "newer", "newest without an end"), 0)


def test_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "meshd.log").write_text("".join(f"line {number:9}\n" for number in range(200_000)))
    lines, left_out = one_of(tmp_path, "meshd")
    assert set(map(len, lines)) == {14} and lines[-1].endswith("199999")
    assert sum(len(line) + 1 for line in lines) <= OWN_BYTES and left_out > 0


def test_a_hostile_line_is_cut_and_shows_no_escapes(tmp_path: Path) -> None:
    (tmp_path / "meshd.log").write_bytes(b"\x1b[2J\xff" + b"x" * 100_000 + b"\n")
    [line], _ = one_of(tmp_path, "meshd")
    assert line.isprintable() and len(line) < MOST_LINE_CHARS + 100


@pytest.mark.timeout(20)
def test_spaces_of_a_model_do_not_take_long(tmp_path: Path) -> None:
    """A name of a model may have a line end: quadratic time would be minutes."""
    (tmp_path / "llama-server.log").write_text("print_info: n_x = " + " " * 400_000 + "!\n")
    assert one_of(tmp_path, "llama-server") == ((), 1)


def test_only_the_newest_programs_are_shown(tmp_path: Path) -> None:
    for number in range(MOST_CHILDREN + 4):
        path = tmp_path / f"mesh-server-{number}.log"
        path.write_text("mesh: x\n" * CHILD_BYTES)
        os.utime(path, (number, number))
    found = list(excerpts(tmp_path))
    assert [excerpt.name for excerpt in found] == [f"mesh-server-{number}" for number in (9, 8, 7, 6, 5, 4)]
    assert all(len("\n".join(excerpt.lines)) <= CHILD_BYTES for excerpt in found)


def test_a_pipe_in_place_of_a_log_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meshd.log")
    [line], _ = one_of(tmp_path, "meshd")
    assert "cannot be read" in line


@pytest.mark.parametrize("name", ["meshd.log", "meshd.log.1", "mesh-server.log"])
def test_a_link_to_a_file_of_another_user_is_not_followed(tmp_path: Path, name: str) -> None:
    """Root may write a report about the node of a service, whose user could then read any file."""
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    (tmp_path / name).symlink_to("/etc/passwd")
    (tmp_path / name.removesuffix(".1")).touch()
    [found] = excerpts(tmp_path)
    assert "cannot be read" in found.lines[0] and "root:" not in "".join(found.lines)


def test_an_answers_file_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"key": "anna"}\n')
    assert list(excerpts(tmp_path)) == []
