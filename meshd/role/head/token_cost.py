"""What a generated token costs on the wire, measured on the answers that clients stream."""

from collections.abc import Callable, Collection

from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh

# The second token of an answer still carries the graph of its shape; those before it the prompt.
FIRST_TOKENS = 3
SAMPLE_TOKENS = 8  # between two looks at the links: a look costs more than a token is worth


class TokenCost:
    """Of one life of the model. Tokens of several answers at once cross together, so those do not count."""

    def __init__(self, crossed: Callable[[], int]) -> None:
        """`crossed`: bytes on the links to the workers so far, both directions."""
        self._crossed = crossed
        self._mark: tuple[int, int] | None = None  # tokens of the answer, and bytes, at the last look
        self._tokens = 0
        self._bytes = 0

    def generated(self, total: int, *, alone: bool) -> None:
        """An answer has `total` tokens by now; `alone`: there is no other request under way."""
        if not alone or total < FIRST_TOKENS or (self._mark is not None and total < self._mark[0]):
            self._mark = None
        if not alone or total < FIRST_TOKENS:
            return
        if self._mark is None:
            self._mark = total, self._crossed()
        elif total - self._mark[0] >= SAMPLE_TOKENS:
            now = self._crossed()
            self._tokens += total - self._mark[0]
            self._bytes += now - self._mark[1]
            self._mark = total, now

    @property
    def bytes_per_token(self) -> float | None:
        """On the average; None until an answer was long enough."""
        return self._bytes / self._tokens if self._tokens else None


def crossed(mesh: Mesh, workers: Collection[PeerId]) -> int:
    """Bytes on the links to these peers so far, both directions."""
    paths = (path for peer in mesh.peers() if peer.peer in workers for path in peer.paths)
    return sum(path.sent_bytes + path.received_bytes for path in paths)
