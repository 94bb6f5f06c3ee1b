"""Run a program once, from spawn to an empty group; used by OwnedChild, and alone for programs that end.

`async with Run(spec) as run`: leaving the block ends the group (TERM first when we were cancelled, for
`stop_timeout` at most) and closes every descriptor, on every path. The process group holds a guard
(orphans.py), the program itself, and whatever it forked. `exited` returns the moment the program ends (the
loop's child watcher says so, even while another process holds its pipes).
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.files import replace_file
from meshd.base.processes import lower_for
from meshd.base.resource_limits import memory_limit, out_of_memory_kills
from meshd.base.units import in_memory
from meshd.process.interface import ChildSpec, Ended
from meshd.process.orphans import Guard, group_lives
from meshd.process.output import ChildOutput
from meshd.process.sandbox_rules import NotConfined, confined

_GONE_SECONDS = 2.0  # after KILL the kernel needs milliseconds; a zombie that nobody reaps stays for ever
STUBBORN_SECONDS = 10.0  # after KILL: then a driver or the kernel holds it, which the log should say
GONE_LOOK = 0.002  # seconds between looks at first; there is no event for "group is empty"
# What a child may know of our environment: where things are, which device to use, how to speak. No secrets.
INHERITED = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
    *("DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "SDKROOT", "DEVELOPER_DIR"),
}
INHERITED_PREFIXES = (
    *("LC_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "GGML_", "GPU_", "CUDA_", "NVIDIA_"),
    *("HIP_", "ROCR_", "ROCM_", "HSA_", "VK_", "MESA_", "MTL_", "METAL_"),
    *("ASAN_", "UBSAN_", "TSAN_"),
)
logger = log.get("process")
NOT_CONFINED_HINT = "set `node.sandbox` to `auto` to start it with what this system has"
DRAIN_SECONDS = 0.5  # for output still in the pipe; only a process that left the group can hold it longer


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return a small clean environment from this process's, plus `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    kept.setdefault("PATH", os.defpath)
    return kept | dict(extra)


def find_program(spec: ChildSpec) -> str:
    """Return the path of argv[0], which may be a bare name. Raises UserError that says what is
    wrong with it.
    """
    if not spec.argv or not spec.argv[0]:
        raise UserError(f"`{spec.name}` could not be started: its command line is empty")
    program = spec.argv[0]
    found = shutil.which(program, path=environment(spec.env)["PATH"])
    if found is not None:
        return str(Path(found).absolute())  # a relative one must not be looked up in the child's folder
    path = Path(program)
    install = "build it with `meshd native build`, or give its path"
    if len(path.parts) == 1 and not path.exists():
        raise UserError(f"cannot find program `{program}` for `{spec.name}` in PATH", hint=install)
    try:
        if path.is_dir():
            raise UserError(f"`{program}` for `{spec.name}` is a directory, not a program", hint=install)
        if not path.exists():
            raise UserError(f"cannot find program `{program}` for `{spec.name}`", hint=install)
    except PermissionError:
        pass
    raise UserError(
        f"program `{program}` for `{spec.name}` is not executable",
        hint=f"run `chmod +x {program}`, or check whether its file system is mounted noexec",
    )


def _spawn_error(spec: ChildSpec, program: str, error: OSError) -> MeshdError:
    """Return the error that tells the user why exec failed."""
    what = f"`{spec.name}` could not be started"
    if not spec.cwd.is_dir():
        return UserError(f"{what}: its working directory `{spec.cwd}` does not exist")
    match error.errno:
        case errno.ENOEXEC | 86:  # 86: EBADARCH of macOS, which errno does not name everywhere
            hint = "build it again on this machine with `meshd native build`"
            return UserError(f"{what}: `{program}` is not a program for this machine", hint=hint)
        case errno.ENOENT:
            hint = "it was built for another system, or its interpreter is missing"
            return UserError(f"{what}: `{program}` needs a loader or interpreter that is missing", hint=hint)
        case errno.EACCES | errno.EPERM:
            return UserError(f"{what}: the system does not allow `{program}` to be run ({error.strerror})")
        case errno.E2BIG:
            return UserError(f"{what}: its command line and environment are too long")
        case _:  # out of memory or processes, busy file: may pass
            return MeshdError(f"{what}: {error.strerror or error}")


async def _spawn(spec: ChildSpec, *, output: int) -> tuple[Guard, asyncio.subprocess.Process]:
    """Start the program in a guarded group, with stdout and stderr into descriptor `output`, stdin empty.

    Raises UserError when only the user can mend it, MeshdError when it may pass. When it raises, or is
    cancelled, nothing runs.
    """
    program = find_program(spec)
    argv, variables, executable = list(spec.argv), environment(spec.env), program
    try:
        made = None if spec.sandbox is None else confined(spec.sandbox, program, variables)
    except NotConfined as missing:
        raise UserError(f"cannot confine {spec.name}: {missing}", hint=NOT_CONFINED_HINT) from None
    if made is not None:
        launcher, variables = made
        argv, executable = [*launcher, *argv[1:]], launcher[0]
    guard = await Guard.start(spec.name)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            executable=executable,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            cwd=spec.cwd,
            pass_fds=(*spec.pass_fds, *spec.hand_over),
            process_group=guard.pid,
        )
    except BaseException as error:
        await _leave_nothing(guard, guard.pid, None, spec.name)
        if isinstance(error, OSError):
            raise _spawn_error(spec, program, error) from error
        raise
    lower_for(process.pid)
    return guard, process


async def _leave_nothing(
    guard: Guard, group: int, process: asyncio.subprocess.Process | None, name: str
) -> None:
    """Kill the rest, reap, and wait until the group is empty (2 s at most for those that others reap).

    Cancelled, it finishes all the same and then raises: a group is never left behind.
    """
    guard.signal(signal.SIGKILL)
    try:
        if process is not None:
            await _reaped(process, name)
        guard.end()
        await _emptied(group, name)
    except asyncio.CancelledError:
        await _leave_nothing(guard, group, process, name)  # to its end all the same
        raise


async def _reaped(process: asyncio.subprocess.Process, name: str) -> None:
    while process.returncode is None:
        try:
            async with asyncio.timeout(STUBBORN_SECONDS):
                await process.wait()
        except TimeoutError:
            logger.warning("child_does_not_end", child=name, pid=process.pid)


async def _emptied(group: int, name: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GONE_SECONDS
    pause = GONE_LOOK
    while group_lives(group):
        if loop.time() > deadline:
            logger.debug("group_not_empty", child=name, group=group)
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)


class Run:
    """Async context manager around one program, the group of what it forked, and its output."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._pid_file = pid_file_of(spec.log)
        self._output: ChildOutput | None = None
        self._guard: Guard | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._kills_before = 0  # by the kernel, for lack of memory
        self._is_killed = False  # by us

    async def __aenter__(self) -> Self:
        """Start the program. Raises UserError when only the user can fix it, MeshdError when a retry may
        help.
        """
        spec = self._spec
        try:
            # Open the log, and start the program in its group.
            self._output = ChildOutput(
                spec.log,
                limit=spec.log_bytes,
                on_line=spec.on_line,
                log_filter=spec.log_filter,
                stamped=spec.stamped,
            )
            write_end = self._output.attach()
            try:
                self._kills_before = out_of_memory_kills()
                self._guard, self._process = await _spawn(spec, output=write_end)
            finally:
                os.close(write_end)
        except BaseException as error:
            if self._output is not None:
                self._output.close()
            if isinstance(error, OSError):  # no more descriptors or processes to be had: that may pass
                raise cannot_start(spec.name, error) from error
            raise
        finally:
            close_all(spec.hand_over)
        # Note the start for reports. The numbers may be reused later, so nobody signals them.
        self._output.note(f"started, pid {self._process.pid}")
        with contextlib.suppress(OSError):
            record = f"{self._process.pid} {self._guard.pid} {os.getpid()} {spec.name}\n"
            replace_file(self._pid_file, record.encode())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._guard is not None
        assert self._output is not None
        try:
            try:
                if isinstance(error, asyncio.CancelledError):
                    await self._end_gently()
            finally:
                await _leave_nothing(self._guard, self._guard.pid, self._process, self._spec.name)
            await self._output.finish(DRAIN_SECONDS)
        finally:
            self._output.close()
            with contextlib.suppress(OSError):
                self._pid_file.unlink(missing_ok=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def tail(self) -> tuple[str, ...]:
        return self._output.tail if self._output is not None else ()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group; the guard heeds only KILL."""
        assert self._guard is not None
        self._is_killed = self._is_killed or number == signal.SIGKILL
        self._guard.signal(number)
        if number == signal.SIGTERM:
            self._guard.signal(signal.SIGCONT)  # one that was stopped could not heed it

    async def exited(self) -> int:
        """Return the exit code, or minus the signal's number, as soon as the program itself has ended."""
        assert self._process is not None
        return await self._process.wait()

    def no_memory(self, code: int) -> str:
        """Return the memory whose exhaustion made the kernel end it; empty if it ended otherwise.

        `code` as from `exited`. The kernel tells only how often it has done so in this node's control group.
        """
        if code != -signal.SIGKILL or self._is_killed or out_of_memory_kills() <= self._kills_before:
            return ""
        limit = memory_limit()
        if limit is None:
            return "the memory of this machine ran out"
        return f"this node reached its memory limit of {in_memory(limit.limit)} (`{limit.group}`)"

    async def _end_gently(self) -> None:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.stop_timeout):
                await self.exited()


def close_all(descriptors: tuple[int, ...]) -> None:
    """Close each descriptor, whatever happens to the others."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def cannot_start(name: str, error: OSError) -> MeshdError:
    """Return the error for what the system refused us, not the child."""
    return MeshdError(f"`{name}` could not be started: {error.strerror or error}")


def split_code(code: int) -> tuple[int | None, int | None]:
    """Return exit code and signal from the number that subprocess gives (negative: a signal)."""
    return (None, -code) if code < 0 else (code, None)


async def run_to_end(spec: ChildSpec) -> Ended:
    """Run a program once and wait for its end; see RunToEnd in interface.py."""
    async with Run(spec) as run:
        ended = await run.exited()
        code, number = split_code(ended)
    return Ended(code=code, signal=number, tail=run.tail, no_memory=run.no_memory(ended))


def pid_file_of(log_path: Path) -> Path:
    """Return the path of the pid file of a child with this log."""
    return log_path.with_suffix(".pid")
