"""What answers took, against what was predicted: by how much later predictions are corrected.

A factor is kept for each split of each model, in a file of the cache. A split that never ran gets the mean of
those that did, on one node or on several alike: so one that ran is not passed over for one that did not, only
because predictions of both are as far off. Factors lie between 0.5 and 2. The measured times of the devices
are part of a split's key, so another build, driver or number of threads, with which devices are measured
again, begins anew; so do the arguments of llama-server and the format of activations. Nor is there anything
in a mean that was learned while a device had other times than now: a factor that came from times that were
measured beside other work would spoil predictions from good ones.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.prediction import PlannedStage, Split
from meshd.role.native.keyed_lines import KeyedLines
from meshd.role.native.trial_cache import trial_key

LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
_MOST_SPLITS = 256
_ENOUGH_TOKENS = 32  # generated, or of prompts, before anything is learned
_REMEMBERED_SECONDS = 300.0  # of answers; older ones count half
_CHANGE = 0.02  # of a factor, before it is written again
_NUMBER = r"(?:-|[0-9]\.[0-9]{4})"
_DEVICE_LETTERS = 6  # of what stands for a device with its times
# Lines of earlier versions end before the devices
_LINE = re.compile(rf"([0-9a-f]{{16}}) ({_NUMBER}) ({_NUMBER})(?: ((?:[0-9a-f]{{{_DEVICE_LETTERS}}})+))?")
LOG = log.get("serve")


@dataclass(frozen=True, slots=True)
class SpeedCorrection:
    """Of rates: predicted ones are multiplied by these. `is_own`: this split itself was measured."""

    generate: float = 1.0
    prompt: float = 1.0
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class _KeptFactors:
    """Factors of one split; None for what was not measured. `group`: splits that resemble it.

    `devices`: those that it runs on, with their times, as `device_marks` has them; empty: not known.
    """

    group: str
    generate: float | None
    prompt: float | None
    devices: frozenset[str] = frozenset()


class SpeedCorrections:
    """`path` None: kept as long as this object."""

    def __init__(self, path: Path | None) -> None:
        self._lines = KeyedLines(path, read=_parsed, show=_line, most=_MOST_SPLITS, on_unwritten=_unwritten)

    def of(self, model: str, split: Split, known: Set[str]) -> SpeedCorrection | None:
        """`model` by its model_key; `known`: the device_marks of all machines.

        None where nothing like it ever ran with devices as they are known now.
        """
        group = _group(model, split)
        own = self._lines.find(_key(model, split))
        alike = [one for one in self._lines.values() if one.group == group]
        alike = [one for one in alike if one.devices and one.devices <= known]
        if own is None and not alike:
            return None
        generate = own.generate if own is not None else None
        prompt = own.prompt if own is not None else None
        return SpeedCorrection(
            generate=generate or _mean([one.generate for one in alike]),
            prompt=prompt or _mean([one.prompt for one in alike]),
            is_own=own is not None,
        )

    def learn(self, model: str, split: Split, generate: float | None, prompt: float | None) -> None:
        """The rates of this split were so many times as high as predicted; None: nothing is known."""
        key = _key(model, split)
        before = self._lines.find(key)
        if before is not None:
            generate = _changed(before.generate, generate)
            prompt = _changed(before.prompt, prompt)
        devices = frozenset(_mark(one.label, one.speed) for one in (*split.stages, split.output))
        kept = _KeptFactors(_group(model, split), _clipped(generate), _clipped(prompt), devices)
        if kept != before:
            self._lines.add(key, kept)


class SpeedLearner:
    """Of one life of a model: measured against predicted seconds, of generating and of prompts."""

    def __init__(self) -> None:
        self._generate = _Ratio()
        self._prompt = _Ratio()

    def answered(self, tokens: int, predicted: float, measured: float, *, is_prompt: bool) -> None:
        """So many tokens took so long, and were predicted to."""
        (self._prompt if is_prompt else self._generate).add(tokens, predicted, measured)

    @property
    def factors(self) -> tuple[float | None, float | None]:
        """Of generating, and of prompts."""
        return self._generate.factor, self._prompt.factor


class _Ratio:
    def __init__(self) -> None:
        self._tokens = 0
        self._predicted = self._measured = 0.0

    def add(self, tokens: int, predicted: float, measured: float) -> None:
        if self._measured > _REMEMBERED_SECONDS:
            self._predicted, self._measured = self._predicted / 2, self._measured / 2
        self._tokens += tokens
        self._predicted += predicted
        self._measured += measured

    @property
    def factor(self) -> float | None:
        if self._tokens < _ENOUGH_TOKENS or self._measured <= 0 or self._predicted <= 0:
            return None
        return self._predicted / self._measured


def model_key(layers: ModelLayers, work: LayerWork, how: Sequence[str]) -> str:
    """The same for the same model run in the same way (`how`: arguments, format of activations)."""
    return trial_key([layers.architecture, repr(layers.layers), *work.texts, "", *how])


def device_marks(speeds: Mapping[tuple[str, str], DeviceSpeed]) -> frozenset[str]:
    """Of devices by node and name, with their times: another mark as soon as they are measured again."""
    return frozenset(_mark(f"{node} {device}", speed) for (node, device), speed in speeds.items())


def _mark(label: str, speed: DeviceSpeed | None) -> str:
    return hashlib.sha256(f"{label} {_times(speed)!r}".encode()).hexdigest()[:_DEVICE_LETTERS]


def _times(speed: DeviceSpeed | None) -> object:
    return speed.times if speed is not None else ()


def _key(model: str, split: Split) -> str:
    parts = [_stage(stage) for stage in (*split.stages, split.output)]
    return trial_key([model, *parts, str(split.micro_batch), str(split.pushed)])


def _stage(stage: PlannedStage) -> str:
    return f"{stage.label} {stage.begin} {stage.end} {_times(stage.speed)!r}"


def _group(model: str, split: Split) -> str:
    several = len({stage.node for stage in split.stages}) > 1
    return hashlib.sha256(f"{model} {several}".encode()).hexdigest()[:16]


def _mean(factors: Sequence[float | None]) -> float:
    known = [math.log(one) for one in factors if one]
    return math.exp(sum(known) / len(known)) if known else 1.0


def _changed(before: float | None, now: float | None) -> float | None:
    """The one before, where that is nearly the same."""
    if now is None or (before is not None and abs(now / before - 1) < _CHANGE):
        return before
    return now


def _clipped(factor: float | None) -> float | None:
    return None if factor is None else round(min(MOST_FACTOR, max(LEAST_FACTOR, factor)), 4)


def _unwritten(why: str) -> None:
    LOG.warning("correction_not_kept", why=why)


def _line(kept: _KeptFactors) -> str:
    shown = (f"{one:.4f}" if one is not None else "-" for one in (kept.generate, kept.prompt))
    devices = f" {''.join(sorted(kept.devices))}" if kept.devices else ""
    return f"{kept.group} {' '.join(shown)}{devices}"


def _parsed(text: str) -> _KeptFactors | None:
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    group, *numbers, marks = found.groups(default="")
    generate, prompt = (None if number == "-" else float(number) for number in numbers)
    if any(one is not None and not LEAST_FACTOR <= one <= MOST_FACTOR for one in (generate, prompt)):
        return None
    places = range(0, len(marks), _DEVICE_LETTERS)
    devices = frozenset(marks[at : at + _DEVICE_LETTERS] for at in places)
    return _KeptFactors(group, generate, prompt, devices)
