"""meshd.build.run: output, exit codes, and that nothing is left after a cancel."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from meshd.build.run import Result, run


def _run(script: str, folder: Path, lines: list[str]) -> Result:
    argv = [sys.executable, "-c", script]
    return asyncio.run(run(argv, env=os.environ, folder=folder, log=folder / "log", on_line=lines.append))


def test_lines_log_and_code(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(3)"
    result = _run(script, tmp_path, lines)
    assert result == Result(3, ("out", "err"))
    assert lines == ["out", "err"]
    log = (tmp_path / "log").read_text()
    assert log.startswith(f"$ {sys.executable} -c")
    assert log.endswith("out\nerr\n")


def test_only_the_last_lines_are_kept_and_long_ones_are_cut(tmp_path: Path) -> None:
    lines: list[str] = []
    result = _run("[print(i) for i in range(1000)]; print('x' * 1_000_000)", tmp_path, lines)
    assert len(result.tail) == 30
    assert result.tail[0] == "971"
    assert len(lines) == 1001
    assert max(map(len, lines)) <= 4096


def test_runs_in_the_folder_and_without_input(tmp_path: Path) -> None:
    lines: list[str] = []
    _run("import os, sys; print(os.getcwd()); print(repr(sys.stdin.read()))", tmp_path, lines)
    assert lines == [os.path.realpath(tmp_path), "''"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run([str(tmp_path / "no")], env={}, folder=tmp_path, log=tmp_path / "log"))


@pytest.mark.parametrize("stubborn", [False, True])
async def test_cancel_ends_the_whole_group(tmp_path: Path, stubborn: bool) -> None:
    script = (
        "import os, signal, sys, time\n"
        + ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else "")
        + "child = os.fork()\n"
        + "os.write(1, b'%d\\n' % os.getpid())\n"  # one write: two processes share the pipe
        + "time.sleep(600)\n"
    )
    pids: list[int] = []

    both = asyncio.Event()

    def on_line(line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            both.set()

    argv = [sys.executable, "-c", script]
    task = asyncio.create_task(
        run(argv, env=os.environ, folder=tmp_path, log=tmp_path / "log", on_line=on_line)
    )
    async with asyncio.timeout(30):
        await both.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(pids) == 2
    end = time.monotonic() + 30  # an orphan's death is nobody's to wait for: it is only looked for
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < end


def _alive(pid: int) -> bool:
    """Return True if it still runs; a dead one that its new parent has not reaped yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
