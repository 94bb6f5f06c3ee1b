"""What answers took, against what was predicted: by how much later predictions are corrected.

For each split of each model a line in a file of the cache says by how much its answers were faster than
predicted, and which shares of the time were of which device and path (split_factors.py). A split that ran is
predicted as it was measured. All splits of a model together tell by how much the predictions of each device
and of each path are off (model/part_factors.py), and so correct splits that never ran. Factors lie between
0.5 and 2.

The measured times of the devices are part of a split's key and of the names of its shares, so another build,
driver or number of threads, with which devices are measured again, begins anew: a factor that came from times
that were measured beside other work would spoil predictions from good ones. A path whose round trip or rate
is far from what it was begins anew as well. The arguments of llama-server and the format of activations make
another model.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.output import DevicePath
from meshd.model.part_factors import LEAST_FACTOR, MOST_FACTOR, Observed, Part, PartFactors, fitted
from meshd.model.prediction import PlannedStage, Split
from meshd.model.time_parts import PredictedParts
from meshd.role.head.split_factors import (
    FACTORS_LINE_BYTES,
    REST,
    THOUSANDTHS,
    SplitFactors,
    by_part,
    device_mark,
    is_now,
    kept_shares,
    parsed,
    path_mark,
    show,
)
from meshd.role.native.keyed_lines import KeyedLines
from meshd.role.native.trial_cache import trial_key

_MOST_SPLITS = 256
_MOST_COUNTED = 64  # of a model's, the newest, by which factors of devices and paths are found
_ENOUGH_TOKENS = 32  # generated, or of prompts, before anything is learned
_REMEMBERED_SECONDS = 300.0  # of answers; older ones count half
_CHANGE = 0.02  # of a factor, before it is written again
LOG = log.get("serve")
PathsNow = Mapping[str, Sequence[DevicePath]]
"""By path_mark: a path as those see it that are on it."""


@dataclass(frozen=True, slots=True)
class SpeedCorrection:
    """Of rates: predicted ones are multiplied by these. `is_own`: this split itself was measured."""

    generate: float = 1.0
    prompt: float = 1.0
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class LearnedFactors:
    """Of the times of devices and paths, in generating and in prompts."""

    generate: PartFactors
    prompt: PartFactors

    def __bool__(self) -> bool:
        return bool(self.generate) or bool(self.prompt)


class SpeedCorrections:
    """`path` None: kept as long as this object."""

    def __init__(self, path: Path | None) -> None:
        self._lines = KeyedLines(
            path,
            read=parsed,
            show=show,
            most=_MOST_SPLITS,
            line_bytes=FACTORS_LINE_BYTES,
            on_unwritten=_unwritten,
        )

    def learned(self, model: str, known: Set[str], paths: PathsNow) -> LearnedFactors:
        """`model` by its model_key; `known`: the device_marks of all machines, `paths`: path_marks."""
        own = [one for one in self._lines.values() if one.model == _short(model)]
        counted = [one for one in own if one.shares and one.devices <= known][-_MOST_COUNTED:]
        generate, prompt = list[Observed](), list[Observed]()
        for one in counted:
            if one.generate is not None:
                generate.append((_named(one, "token", paths), 1 / one.generate))
            if one.prompt is not None:
                prompt.append((_named(one, "prompt", paths), 1 / one.prompt))
        return LearnedFactors(fitted(generate), fitted(prompt))

    def of(
        self, model: str, split: Split, parts: PredictedParts, learned: LearnedFactors
    ) -> SpeedCorrection | None:
        """`parts`: its prediction. None where nothing is known of it, nor of other splits of the model."""
        own = self._lines.find(_key(model, split))
        own = own if own is not None and own.is_on(parts.token) else None
        if own is None and not learned:
            return None
        generate = own.generate if own is not None else None
        prompt = own.prompt if own is not None else None
        return SpeedCorrection(
            generate=generate or 1 / learned.generate.ratio(by_part(parts.token)),
            prompt=prompt or 1 / learned.prompt.ratio(by_part(parts.prompt)),
            is_own=own is not None,
        )

    def learn(
        self, model: str, split: Split, parts: PredictedParts, generate: float | None, prompt: float | None
    ) -> None:
        """The rates of this split were so many times as high as predicted; None: nothing is known."""
        if generate is None and prompt is None:
            return
        key = _key(model, split)
        shares = kept_shares(parts.token, parts.prompt)
        before = self._lines.find(key)
        if before is not None and before.is_on(parts.token):
            generate = _changed(before.generate, generate)
            prompt = _changed(before.prompt, prompt)
            if (generate, prompt) == (before.generate, before.prompt) and before.shares:
                return
        self._lines.add(key, SplitFactors(_short(model), _clipped(generate), _clipped(prompt), shares))


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
    return frozenset(device_mark(f"{node} {device}", speed) for (node, device), speed in speeds.items())


def paths_now(paths: Iterable[tuple[tuple[str, str], DevicePath]]) -> PathsNow:
    """By time_parts.ends_of; several of the same ends where each end sees it differently."""
    found: dict[str, list[DevicePath]] = {}
    for ends, path in paths:
        found.setdefault(path_mark(ends), []).append(path)
    return found


def _named(kept: SplitFactors, kind: str, paths: PathsNow) -> Mapping[Part, float]:
    """Its shares of 1. A path that is another one by now has a factor for itself."""
    found: dict[Part, float] = {}
    for one in kept.shares:
        if one.path is None:
            part = "device", one.mark
        elif is_now(one, paths):
            part = "path", one.mark
        else:
            part = "former path", f"{one.mark} {one.path.rtt} {one.path.rate}"
        found[part] = (one.token if kind == "token" else one.prompt) / THOUSANDTHS
    found[REST] = max(0.0, 1 - sum(found.values()))
    return found


def _key(model: str, split: Split) -> str:
    parts = [_stage(stage) for stage in (*split.stages, split.output)]
    return trial_key([model, *parts, str(split.micro_batch), str(split.pushed)])


def _stage(stage: PlannedStage) -> str:
    times = stage.speed.times if stage.speed is not None else ()
    return f"{stage.label} {stage.begin} {stage.end} {times!r}"


def _short(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()[:16]


def _changed(before: float | None, now: float | None) -> float | None:
    """The one before, where that is nearly the same."""
    if now is None or (before is not None and abs(now / before - 1) < _CHANGE):
        return before
    return now


def _clipped(factor: float | None) -> float | None:
    return None if factor is None else round(min(MOST_FACTOR, max(LEAST_FACTOR, factor)), 4)


def _unwritten(why: str) -> None:
    LOG.warning("correction_not_kept", why=why)
