"""A request as it goes to llama-server, and how it waits for its model before that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshd.gateway.body import with_fields
from meshd.gateway.events import StreamForm
from meshd.gateway.failure import HttpRefusal, not_ready
from meshd.gateway.interface import Turn


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """`counts` when its answer holds generated tokens. `turn`: it waits for that, and is made in it.

    `added`: fields of the body that depend on the model as it is loaded; it may raise HttpRefusal.
    """

    method: str
    path: str
    body: bytes | None
    stream: bool
    counts: bool
    form: StreamForm
    headers: dict[str, str]  # to be added to the answer
    turn: Turn
    own_seed: bool = False  # the client has given none
    added: Callable[[], Mapping[str, object]] | None = None

    async def begun(self) -> "ProxiedCall":
        """The same with its whole body, once the model is there. Raises HttpRefusal."""
        if (refused := await self.turn.begin()) is not None:
            raise HttpRefusal(not_ready(refused))
        fields = self.added() if self.added is not None else {}
        body = with_fields(self.body, fields) if fields and self.body else self.body
        return replace(self, body=body, added=None)
