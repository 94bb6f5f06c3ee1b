"""The buffers of one mesh-server: what its head has asked for, and what the server has made of that."""

from collections import Counter
from collections.abc import Mapping


class MeshBuffers:
    """The caller bounds how many there are."""

    __slots__ = ("_asked_bytes", "_devices", "_made", "_sizes")

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._devices: dict[int, int] = {}
        self._made: set[int] = set()  # those that the server has said to have
        self._asked_bytes = 0

    @property
    def sizes(self) -> Mapping[int, int]:
        """By their numbers; a head may name a buffer before its server has answered."""
        return self._sizes

    @property
    def asked_bytes(self) -> int:
        """Of all of them."""
        return self._asked_bytes

    def ask(self, number: int, device: int, size: int) -> None:
        """One that there is not."""
        self._sizes[number] = size
        self._devices[number] = device
        self._asked_bytes += size

    def answer(self, number: int, *, made: bool) -> None:
        """What the server says of it. It may have been freed meanwhile."""
        if number not in self._sizes:
            return
        if made:
            self._made.add(number)
        else:
            self.forget(number)

    def forget(self, number: int) -> None:
        """One that there is."""
        self._asked_bytes -= self._sizes.pop(number)
        del self._devices[number]
        self._made.discard(number)

    def held(self) -> Mapping[int, int]:
        """Bytes that the server has for them, by device."""
        held: Counter[int] = Counter()
        for number in self._made:
            held[self._devices[number]] += self._sizes[number]
        return held
