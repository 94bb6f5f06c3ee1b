"""Remember how the runs of one model were split, by layers or by tensors, and whether the latter failed.

An assert of llama.cpp's Meta device ends llama-server, while the model is loaded or with the first tokens. A
run by tensors that `--split auto` chose and that ends like this is the last one of this daemon: whoever has
not asked for it is to find out as little as possible of it.
"""

from dataclasses import replace

from meshd.base import log
from meshd.plan.reasons import OtherWay
from meshd.plan.split import Plan

LOG = log.get("serve")


class SplitWays:
    """Hold what the next run has to know of the ones before."""

    def __init__(self) -> None:
        self.failed = ""
        """Why `--split auto` does not choose tensors any more; empty: it may."""
        self._last: bool | None = None  # by tensors, of the run that was ready last

    def fail(self, why: str) -> None:
        """Note that a run by tensors has ended before it had answered anything."""
        self.failed = f"a run by tensors ended before it answered ({why}); it is tried again after a restart"
        LOG.warning("tensors_failed", why=why)

    def loaded(self, *, by_tensors: bool) -> None:
        """Note how the run is split that is ready."""
        self._last = by_tensors

    def noted(self, plan: Plan) -> Plan:
        """Return the plan of the next run, which says where it is split otherwise than the one before."""
        if self._last is None or self._last is plan.by_tensors:
            return plan
        return replace(plan, reasons=(*plan.reasons, OtherWay(by_tensors=self._last)))
