"""Remember how the runs of one model were split, by layers or by tensors, and whether the latter failed.

An assert of llama.cpp's Meta device ends llama-server, while the model is loaded, with the first tokens, or
with some later batch. A run by tensors that `--split auto` chose and that ends like this is the last one of
this daemon, because its user did not ask for it. Only the end of llama-server itself counts: a worker that
refuses, or is lost, says nothing of the split (failures.py).
"""

from dataclasses import replace

from meshd.base import log
from meshd.head.failures import STEADY_SECONDS
from meshd.plan.reasons import OtherWay
from meshd.plan.split import Plan

_LATE_ENDS = 2  # in a row, behind the first answer: once may be chance, or the request
_INDIRECT_LOADS = 3  # in a row, which nobody could use: each with other workers
LOG = log.get("serve")


class SplitWays:
    """Hold what the next run has to know of the ones before."""

    def __init__(self) -> None:
        self.failed = ""
        """Why `--split auto` does not choose tensors any more; empty: it may."""
        self._last: bool | None = None  # by tensors, of the run that was ready last
        self._late_ends = 0
        self._loads = 0  # by tensors since the last of those ends
        self._indirect = 0

    def ended(self, why: str, *, lasted: float, answered: bool) -> None:
        """Note that llama-server has ended by itself in a run by tensors, `lasted` seconds after the load."""
        if not answered:
            self._fail(f"a run by tensors ended before it answered ({why})")
            return
        in_row = self._late_ends if self._loads <= 1 else 0  # else a run in between ended otherwise
        self._late_ends, self._loads = in_row + 1 if lasted < STEADY_SECONDS else 0, 0
        if self._late_ends >= _LATE_ENDS:
            self._fail(f"{self._late_ends} runs by tensors ended soon after the load, the last because {why}")

    def indirect(self, why: str) -> None:
        """Note that sums of a run by tensors do not go where they should: it ends before anybody asks."""
        self._indirect += 1
        if self._indirect >= _INDIRECT_LOADS:
            self._fail(
                f"{self._indirect} loads by tensors were ended before any request, the last because {why}"
            )

    def slower(self, why: str) -> None:
        """Note that a run by tensors was slower than one by layers would have been."""
        self._fail(why)

    def _fail(self, what: str) -> None:
        self.failed = f"{what}; tensors are not tried again until meshd restarts on this node"
        LOG.warning("tensors_failed", why=what)

    def loaded(self, *, by_tensors: bool) -> None:
        """Note how the run is split that is ready."""
        self._last = by_tensors
        if by_tensors:
            self._loads += 1
        self._indirect = 0

    def noted(self, plan: Plan) -> Plan:
        """Return the plan of the next run, which says where it is split otherwise than the one before."""
        if self._last is None or self._last is plan.by_tensors:
            return plan
        return replace(plan, reasons=(*plan.reasons, OtherWay(by_tensors=self._last)))
