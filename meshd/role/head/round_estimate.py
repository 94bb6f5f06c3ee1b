"""What a round over a split takes, before it is measured: as predicted, or by its paths and weights. Pure.

The rates of devices that were never measured are those by which the output layer is placed (model/output.py).
"""

from meshd.model.output import CPU_RATE, GPU_RATE
from meshd.model.split_values import Plan
from meshd.model.status import Speeds
from meshd.role.head.draft_model import DraftModel
from meshd.role.head.speculation import RoundEstimate

_CHECKED_AT_ONCE = (
    4  # tokens in the time that a CPU takes to read the weights for one: it computes longer then
)


def round_estimate(
    plan: Plan, weights: int, speeds: Speeds | None, draft: DraftModel | None
) -> RoundEstimate:
    """`weights`: bytes of the model; `speeds`: as predicted, if they are."""
    drafting = draft.layers.weight_bytes / CPU_RATE if draft is not None else 0.0
    if speeds is not None and speeds.generate_tok_s and speeds.prompt_tok_s:
        return RoundEstimate(1 / speeds.generate_tok_s, 1 / speeds.prompt_tok_s, drafting)
    devices = [share.device for share in plan.shares if share.layers]
    rate = GPU_RATE if devices and all(device.is_gpu for device in devices) else CPU_RATE
    paths = [device.path.rtt for device in devices if device.path is not None]
    travel = (
        sum(paths) / len(paths) * (len(paths) + 1) / 2 if paths else 0.0
    )  # from each to the next, and back
    computing = weights / rate
    return RoundEstimate(travel + computing, computing / _CHECKED_AT_ONCE, drafting)
