"""What one run of the model drafts, and which requests take candidates for its tokens (model_run.py)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from meshd.model.device_sampling import DeviceSampling
from meshd.model.drafts import Drafts
from meshd.model.split_values import Plan
from meshd.model.status import Speeds
from meshd.role.head.round_estimate import round_estimate
from meshd.role.head.run_input import RunHistory, ServedModel


class RunDrafts:
    """Of one run: `begin` when the split is known, `time_round` once the model is loaded."""

    def __init__(self, model: ServedModel, history: RunHistory) -> None:
        self._model = model
        self._history = history

    def begin(self, plan: Plan, predicted: Speeds | None) -> Drafts:
        """What llama-server is to draft."""
        layers, draft = self._model.layers, self._model.options.draft_model
        estimate = round_estimate(plan, layers.weight_bytes, predicted, draft)
        now = asyncio.get_running_loop().time()
        return self._history.speculation.begin(estimate, now, most=plan.shape.most_drafted)

    def sampling(self, plan: Plan, settings: Mapping[str, object]) -> DeviceSampling | None:
        """By llama-server's own settings; None where no worker makes logits."""
        if plan.output_worker is None:
            return None
        adds = self._model.options.sample_on_worker and plan.output_worker.has_top_k
        drafts = self._history.speculation.drafts.longest > 0
        return DeviceSampling(settings, self._model.layers.widths.vocabulary, adds=adds, drafts=drafts)

    async def time_round(self, round_seconds: Callable[[Path], Awaitable[float | None]]) -> None:
        """A round without drafts, for their gain; not beside an answer, which would take part in it."""
        history, now = self._history, asyncio.get_running_loop().time()
        if history.speculation.drafts.longest and history.moments.idle_seconds(now):
            history.speculation.round_took(await round_seconds(self._model.socket) or 0.0)
