"""What a head has measured before a load, and how long that takes: once for each kind of model."""

import asyncio
from collections.abc import Callable, Sequence

from meshd.model.layer_work import LayerWork
from meshd.role.head.split_plan import HeadOptions


def own_timed(work: LayerWork, options: HeadOptions) -> Sequence[str]:
    """What the head's own devices may compute: without layers (`--device none`) the output at most."""
    if options.devices != ("none",):
        return work.texts
    if work.output is None or options.output not in ("auto", "head"):
        return []
    return [work.texts[work.output]]


class MeasuringTime:
    """From the first word of a measurement, which is passed on like all of them; `seconds` at the end."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        self._on_progress = on_progress
        self._began: float | None = None

    def tell(self, text: str) -> None:
        """One of them."""
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
        self._on_progress(text)

    @property
    def seconds(self) -> float:
        """0 where nothing had to be measured."""
        return 0.0 if self._began is None else asyncio.get_running_loop().time() - self._began
