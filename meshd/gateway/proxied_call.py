"""A request as it goes to llama-server, and what becomes of it there."""

from dataclasses import dataclass, field

from meshd.base.errors import MeshdError
from meshd.gateway.answer_meter import AnswerMeter
from meshd.gateway.events import StreamForm
from meshd.gateway.turns import Turn


class UpstreamLost(MeshdError):
    """llama-server went away, or cannot answer; `taken` tells whether it had the request by then."""

    def __init__(self, what: str, *, taken: bool) -> None:
        super().__init__(what)
        self.taken = taken


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """One request. `counts` when its answer holds generated tokens; `turn`: what it waits for, if for one."""

    method: str
    path: str
    body: bytes | None
    stream: bool
    counts: bool
    form: StreamForm
    headers: dict[str, str]  # to be added to the answer
    own_seed: bool = False  # the client has given none
    turn: Turn | None = None
    meter: AnswerMeter = field(default_factory=AnswerMeter)
