"""The place of a hostile client: what the server gave it, and the tensors that it can name there."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

ROOM = 4 << 20
F32, F16, Q4_0, Q8_K, I32, I64 = 0, 1, 2, 15, 26, 27  # ggml types
_BYTES = {F32: 4, F16: 2, I32: 4, I64: 8}


@dataclass(frozen=True, slots=True)
class Stage:
    """What the server gave to this client."""

    handle: int
    base: int

    def tensor(self, number: int, at: int, *ne: int, kind: int = F32, **other: object) -> Tensor:
        """Without gaps, `at` bytes behind the buffer's beginning."""
        shape = (*ne, 1, 1, 1)[:4]
        strides = [_BYTES.get(kind, 1)]
        for size in shape[:3]:
            strides.append(strides[-1] * size)
        fields = {"ne": shape, "nb": tuple(strides), "kind": kind, "flags": talk.COMPUTE}
        made = Tensor(id=number, buffer=self.handle, data=self.base + at, **fields)  # type: ignore[arg-type]
        return replace(made, **other)  # type: ignore[arg-type]

    def node(self, op: int, ne: tuple[int, ...], /, *sources: Tensor, **other: object) -> bytes:
        """A graph of one operation on these sources; its result is in the last MiB, or as `other` says."""
        numbers = tuple(source.id for source in sources)
        fields = {"op": op, "sources": numbers, **other}
        result = self.tensor(len(sources) + 1, 3 << 20, *ne, **fields)  # type: ignore[arg-type]
        return talk.graph([*sources, result], (result.id,))


Make = Callable[[Stage], bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """`why`: words of the server's log; empty where it closes the connection without any."""

    why: str
    make: Make
