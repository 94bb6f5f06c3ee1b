"""A line between two namespaces whose delay, loss, rate and moods can be changed while it is in use."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.netns.space import Namespace

PROGRAM = Path(__file__).with_name("emulator.py")
QUEUE_BYTES = 512 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a line. The default is a perfect one.

    `jitter_ms` is added to the delay, evenly between 0 and it; packets stay in order unless `reorder`.
    `loss` is a probability. `rate_mbit` 0 is without limit; what waits for its turn is at most
    `queue_bytes`. `max_bytes`: a larger IP packet vanishes without a word (0: none does).
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    rate_mbit: float = 0.0
    queue_bytes: int = QUEUE_BYTES
    blackhole: bool = False
    max_bytes: int = 0
    reorder: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The packets of one direction since the start: what arrived, and what did not and why."""

    packets: int
    bytes: int
    lost: int
    queue_full: int
    too_big: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Settings of a line at its start. `up` leaves the first namespace, `down` arrives there.

    `mtu` is that of both devices: their hosts know it and say "too big" (`Way.max_bytes` does not).
    """

    up: Way = Way()
    down: Way = Way()
    mtu: int = 1500
    seed: int = 1

    @classmethod
    def both(cls, way: Way, *, mtu: int = 1500, seed: int = 1) -> Self:
        """The same in both directions. A delay is one way: the round trip is twice that."""
        return cls(up=way, down=way, mtu=mtu, seed=seed)


class Wan:
    """Context manager: a TUN device in each namespace, joined by a process. Addresses are the caller's.

    Every method returns when the line has obeyed; what was sent before is treated as before.
    """

    def __init__(
        self, near: Namespace, near_device: str, far: Namespace, far_device: str, *, line: Line
    ) -> None:
        self._ends = ((near, near_device), (far, far_device))
        self.line = line

    def __enter__(self) -> Self:
        (near, near_device), (far, far_device) = self._ends
        names = [str(near.path), near_device, str(far.path), far_device]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._answer()
            for space, device in self._ends:
                # a burst of a fast sender must not be lost before it reaches the line
                space.ip(f"link set {device} mtu {self.line.mtu} txqueuelen 10000 up")
            self.set(up=self.line.up, down=self.line.down, seed=self.line.seed)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def set(self, *, up: Way | None = None, down: Way | None = None, seed: int | None = None) -> None:
        """Settings from now on; a direction that is not named stays as it is. `seed`: chance begins again."""
        named = {"a": up, "b": down}
        command: dict[str, object] = {name: asdict(way) for name, way in named.items() if way is not None}
        self._tell(command if seed is None else {**command, "seed": seed})

    def both(self, way: Way) -> None:
        """The same settings both ways from now on."""
        self.set(up=way, down=way)

    def cable_out(self, seconds: float) -> None:
        """Lose every packet of both directions for so long; returns at once."""
        self._tell({"cable_out": seconds})

    def counts(self) -> tuple[Counts, Counts]:
        """Up and down."""
        answer = self._tell({})
        return Counts(*answer["a"]), Counts(*answer["b"])

    @property
    def pid(self) -> int:
        """The pid of the process, for who measures what it costs."""
        return self._process.pid

    def _tell(self, command: dict[str, object]) -> dict[str, list[int]]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, list[int]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the emulator has ended: {self._process.wait(10.0)}")
        answer: dict[str, list[int]] = json.loads(line)
        return answer

    def _end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)
