"""Hold the comparison of a split by layers with one by tensors, worded once for all that show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from meshd.plan.reasons import names_of
from meshd.plan.tensor_prediction import SWITCHED_SECONDS, PairWay


class WayAdvice(StrEnum):
    """Say whether a split by tensors is worth it for a conversation."""

    WORTH = "`--split tensor` is worth it"
    SLOWER = "`--split tensor` would be slower"
    NO_GAIN = "`--split tensor` would gain too little"
    UNSURE = (
        "`--split tensor` may gain too little: with three or more workers, prompts can take longer than "
        "predicted"
    )
    FAR = "`--split tensor` needs a cable: less than 1 ms between workers"
    WIRELESS = "`--split tensor` needs a cable: some of these workers are connected over Wi-Fi"
    UNMEASURED = "too little was measured to rely on it"
    DRAFTS = "a draft model or draft options, which only a split by layers supports, may gain as much"


AUTO_CHOOSES = "`auto` chooses it"


def against_paths(pairs: Sequence[PairWay]) -> WayAdvice | None:
    """Return what these paths between workers say against a split by tensors; None: nothing."""
    if any(pair.path.is_wireless for pair in pairs):
        return WayAdvice.WIRELESS
    if any(pair.path.rtt >= SWITCHED_SECONDS for pair in pairs):
        return WayAdvice.FAR
    return None if all(pair.is_known and pair.is_rated for pair in pairs) else WayAdvice.UNMEASURED


def lack_cable(pairs: Sequence[PairWay]) -> bool:
    """Tell whether some of these paths are no cable."""
    return against_paths(pairs) in (WayAdvice.WIRELESS, WayAdvice.FAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayRates:
    """Hold tokens a second of an answer, and the seconds of a conversation."""

    tok_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWays:
    """Compare the fastest split by layers with one by tensors over `nodes`.

    `prompt`, `answer`: tokens of the conversation. `pair`: round trip and bytes a second (None: unknown) of
    the slowest two workers; None: they are on one machine. `on_cable`: tokens a second with 10 GbE between
    workers, None where that changes little. `auto`: what `--split auto` makes of it; empty: nothing to say.
    """

    nodes: tuple[str, ...]
    layers: WayRates
    tensors: WayRates
    prompt: int
    answer: int
    pair: tuple[float, float | None] | None
    on_cable: float | None
    advice: WayAdvice
    auto: str = ""

    def __str__(self) -> str:
        pair = "on one machine"
        if self.pair is not None:
            rtt, rate = self.pair
            pair = (
                f"{rtt * 1000:.2f} ms, {f'{rate / 1e6:.0f} MB/s' if rate else 'unknown rate'} between workers"
            )
        cable = f"; on a 10 GbE cable {self.on_cable:.1f}" if self.on_cable is not None else ""
        return (
            f"by layers {self.layers.tok_s:.1f}, by tensors over {names_of(self.nodes)} "
            f"{self.tensors.tok_s:.1f} tok/s ({pair}{cable}); a prompt of {self.prompt} tokens and an answer "
            f"of {self.answer} take {self.layers.seconds:.1f} s by layers and {self.tensors.seconds:.1f} s "
            f"by tensors: {self.advice}{self.auto and f'; {self.auto}'}"
        )


def auto_refuses(why: str, *, at_load: bool = False) -> str:
    """Word why `auto` does not choose what is worth it; `at_load`: it did not for the run that there is."""
    if at_load and why == WayAdvice.UNMEASURED:
        return "too little had been measured when it was loaded: `auto` decides again at the next load"
    return f"`auto` stays by layers: {why}"


@dataclass(frozen=True, slots=True)
class OneWay:
    """Say why there is no split by tensors."""

    why: str

    def __str__(self) -> str:
        return f"not by tensors: {self.why}"


# What is advised of a split by tensors that runs.


@dataclass(frozen=True, slots=True)
class SplitByLayers:
    """Split by layers instead."""

    def __str__(self) -> str:
        return "whole layers on each machine (`--split layers`)"


@dataclass(frozen=True, slots=True)
class WaysCompared:
    """Hold what the advice rests on; `is_compared`: there is a split by layers."""

    is_compared: bool
    estimated: bool

    def __str__(self) -> str:
        text = "a split by tensors is compared with the fastest by layers alone, without drafts"
        if not self.is_compared:
            text = "no split by layers can be compared with it"
        if self.estimated:
            text += "; a device or a path was never measured"
        return text
