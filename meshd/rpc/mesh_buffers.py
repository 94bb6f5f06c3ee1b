"""The buffers of one mesh-server: those requested by its head, and those that it has allocated."""

from collections import Counter
from collections.abc import Mapping

from meshd.rpc.mesh_protocol import BUFFERS


class MeshBuffers:
    """At most BUFFERS buffers. The server decides which exist: one that it does not allocate never counts."""

    __slots__ = ("_asked", "_made")

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, int]] = {}  # by their numbers: device, bytes
        self._made: set[int] = set()  # those that the server has said to have

    def ask(self, number: int, device: int, size: int) -> bool:
        """Note a request for a buffer; False: the server would have too many. False: the server would have
        too many.

        Of a number that is in use the first request counts: the server refuses the second one.
        """
        if len(self._asked) >= BUFFERS:
            return False
        self._asked.setdefault(number, (device, size))
        return True

    def answer(self, number: int, *, made: bool) -> None:
        """Record the server's reply for a buffer, which may have been freed meanwhile."""
        if not made:
            self.forget(number)
        elif number in self._asked:
            self._made.add(number)

    def forget(self, number: int) -> None:
        """Forget a freed buffer, if there is one."""
        self._asked.pop(number, None)
        self._made.discard(number)

    def held(self) -> Mapping[int, int]:
        """Return the bytes that the server has allocated, by device."""
        held: Counter[int] = Counter()
        for number in self._made:
            device, size = self._asked[number]
            held[device] += size
        return held
