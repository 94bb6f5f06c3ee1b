"""What a round over a split takes, before it is measured: as predicted, or by its paths and weights. Pure.

The rates of devices that were never measured are those by which the output layer is placed (model/output.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from meshd.model.drafts import MOST_FREE, MOST_MODEL
from meshd.model.output import CPU_RATE, GPU_RATE
from meshd.model.split_values import Plan
from meshd.role.head.draft_model import DraftModel

_KEPT = 0.25  # of drafting: the draft model computes once more what was made, several tokens at once
RoundSeconds = Callable[[int], float]
"""Of a round that computes so many tokens of an answer."""
_CHECKED_AT_ONCE = (
    4  # tokens in the time that a CPU takes to read the weights for one: it computes longer then
)


@dataclass(frozen=True, slots=True)
class RoundEstimate:
    """Seconds: of a round over the split with one token, of checking and of drafting one more token.

    `checks`: of checking one, two, … tokens, as far as that is known better.
    """

    round: float
    check: float
    draft: float = 0.0
    checks: tuple[float, ...] = ()

    def checking(self, count: int) -> float:
        """So many drafted tokens in one round."""
        return self.checks[count - 1] if 0 < count <= len(self.checks) else count * self.check

    @property
    def base(self) -> float:
        """Of a round that drafts with the draft model: that computes the token which was made, too."""
        return self.draft

    @property
    def token(self) -> float:
        """Of one more that the draft model drafts."""
        return self.check + (1 + _KEPT) * self.draft


def round_estimate(
    plan: Plan, weights: int, seconds: RoundSeconds | None, draft: DraftModel | None
) -> RoundEstimate:
    """`weights`: bytes of the model; `seconds`: of rounds of this plan as predicted, None if they are not.

    A CPU may need for four tokens at once four times as long as for one, and for 32 of them eight times: each
    length has its own time.
    """
    drafting = draft.layers.weight_bytes / CPU_RATE if draft is not None else 0.0
    if seconds is not None:
        one = seconds(1)
        checks = tuple(max(0.0, seconds(1 + length) - one) for length in range(1, MOST_FREE + 1))
        each = max(check / length for length, check in enumerate(checks[:MOST_MODEL], start=1))
        return RoundEstimate(one, each, drafting, checks)
    devices = [share.device for share in plan.shares if share.layers]
    rate = GPU_RATE if devices and all(device.is_gpu for device in devices) else CPU_RATE
    paths = [device.path.rtt for device in devices if device.path is not None]
    travel = (
        sum(paths) / len(paths) * (len(paths) + 1) / 2 if paths else 0.0
    )  # from each to the next, and back
    computing = weights / rate
    return RoundEstimate(travel + computing, computing / _CHECKED_AT_ONCE, drafting)
