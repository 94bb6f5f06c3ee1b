"""What one run of the model drafts, and which requests take candidates for its tokens (model_run.py)."""

import asyncio
from collections.abc import Mapping

from meshd.base import log
from meshd.devices.interface import Processes
from meshd.head.run_input import RunHistory, ServedModel
from meshd.head.run_measures import RunMeasures
from meshd.head.speculation import round_estimate
from meshd.model.device_sampling import DeviceSampling
from meshd.model.drafts import Drafts
from meshd.plan.split import Plan

LOG = log.get("serve")
_UNUSED_SECONDS = 3.0  # of a model, before a round is timed


class RunDrafts:
    """Of one run: `begin` when the split is known, `try_model` once it is loaded, then `time_round`."""

    def __init__(self, model: ServedModel, history: RunHistory) -> None:
        self._model = model
        self._history = history

    def begin(self, plan: Plan, measures: RunMeasures) -> Drafts:
        """What llama-server is to draft."""
        layers, draft = self._model.layers, self._model.options.draft
        estimate = round_estimate(plan, layers.weight_bytes, measures.round_seconds, draft)
        speculation, now = self._history.speculation, asyncio.get_running_loop().time()
        drafts = speculation.begin(estimate, now, most=plan.shape.most_drafted)
        if speculation.why_no_model:
            LOG.info("draft_model_unused", why=speculation.why_no_model)
        return drafts

    def sampling(self, plan: Plan, settings: Mapping[str, object]) -> DeviceSampling | None:
        """By llama-server's own settings; None where no worker makes logits."""
        if plan.output_worker is None:
            return None
        adds = plan.output_worker.has_top_k
        drafts = self._history.speculation.drafts.longest > 0
        return DeviceSampling(settings, self._model.layers.widths.vocabulary, adds=adds, drafts=drafts)

    async def try_model(
        self, processes: Processes, sampling: DeviceSampling | None, load_seconds: float
    ) -> str:
        """Why the model is to be loaded again before anybody asks: its drafts, timed now, would lose."""
        speculation, socket = self._history.speculation, self._model.socket
        speculation.loaded(load_seconds)
        if speculation.is_tried:
            return ""
        seconds = await processes.round_seconds(socket, sampling)
        timings = await processes.drafted_rounds(socket, sampling, speculation.drafts.model)
        return speculation.tried(seconds, timings)

    async def time_round(self, processes: Processes, sampling: DeviceSampling | None) -> None:
        """A round without drafts, for their gain, once nobody has asked for a while: beside an answer it
        would share a batch, and a text may differ then where two tokens are as likely.
        """
        history, loop = self._history, asyncio.get_running_loop()
        loaded = loop.time()
        if not history.speculation.drafts.longest:
            return
        while True:
            unused = min(loop.time() - loaded, history.moments.idle_seconds(loop.time()))
            if unused >= _UNUSED_SECONDS:
                break
            await asyncio.sleep(_UNUSED_SECONDS - unused)
        history.speculation.round_took(await processes.round_seconds(self._model.socket, sampling) or 0.0)
