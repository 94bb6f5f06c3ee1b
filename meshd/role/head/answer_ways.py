"""What a way between two nodes costs an answer, to compare orders of workers roughly. Pure."""

from meshd.model.output import SAMPLED_BYTES, DevicePath
from meshd.model.prediction import HOP_SECONDS
from meshd.role.head.plan_prediction import ASSUMED_ANSWER, ASSUMED_PROMPT, Machines
from meshd.role.head.worker_orders import HEAD_END

_NUMBER_BYTES = 4  # of a token, and of each number of its hidden state


class AnswerWays:
    """Seconds for all that passes from one to the other; `HEAD_END` may be one of them.

    `tokens` of a prompt pass at once. All of them count on each way, as the slowest way or device decides how
    they follow one another. `numbers`: to the first worker, in place of hidden states.
    """

    def __init__(
        self, machines: Machines, embedding: int, tokens: int, *, pushed: bool, numbers: bool
    ) -> None:
        self._to_head = {offer.node: offer.path for offer in machines.offers}
        self._paths = machines.paths
        self._state = _NUMBER_BYTES * embedding
        self._first = _NUMBER_BYTES if numbers else self._state
        self._tokens = min(ASSUMED_PROMPT, tokens)
        self._pushed = pushed
        self._known: dict[tuple[str, str], float] = {}

    def __call__(self, before: str, behind: str) -> float:
        key = before, behind
        if key not in self._known:
            self._known[key] = self._seconds(*key)
        return self._known[key]

    def _seconds(self, before: str, behind: str) -> float:
        ends = [path for node in (before, behind) if (path := self._to_head.get(node)) is not None]
        hop = (ASSUMED_ANSWER + 1) * HOP_SECONDS
        if behind == HEAD_END:
            return hop + sum((ASSUMED_ANSWER + 1) * _once(path, SAMPLED_BYTES) for path in ends)
        if before == HEAD_END:
            return hop + sum(self._on(path, self._first) for path in ends)
        if not self._pushed:  # the head is between the two
            return hop + sum(self._on(path, self._state) for path in ends)
        known = self._paths.get((before, behind))
        if known is not None:
            return hop + self._on(known, self._state)
        return hop + max((self._on(path, self._state) for path in ends), default=0.0)

    def _on(self, path: DevicePath, count: int) -> float:
        batches = -(-ASSUMED_PROMPT // self._tokens)
        prompt = path.rtt / 2 + batches * path.seconds(self._tokens * count)
        return ASSUMED_ANSWER * _once(path, count) + prompt


def _once(path: DevicePath, count: int) -> float:
    return path.rtt / 2 + path.seconds(count)
