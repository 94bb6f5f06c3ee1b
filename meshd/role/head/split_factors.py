"""What is kept of a split that ran: how much faster than predicted it was, and the shares of its parts.

A line of text for each, of which the reader believes nothing that this module would not have written.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import AT_ONCE, DevicePath
from meshd.model.part_factors import LEAST_FACTOR, MOST_FACTOR, Part
from meshd.model.time_parts import PredictedPart, total

PARTS_OF_LINE = 20  # of a split; what has more is kept without them
FACTORS_LINE_BYTES = 1024  # with its key
THOUSANDTHS = 1000  # of which shares are told
REST: Part = ("rest", "")
_MARK_LETTERS = 6
_SAME_SECONDS = 0.003  # round trips that differ by less are the same: new links wobble
_SAME_RTT, _SAME_RATE = 1.5, 3.0  # or by a smaller factor; of the seconds for AT_ONCE bytes likewise
_NUMBER = r"(?:-|[0-9]\.[0-9]{4})"
_SHARE = rf"[0-9a-f]{{{_MARK_LETTERS}}}:[0-9]{{1,4}}:[0-9]{{1,4}}(?::[0-9]{{1,9}}:[0-9]{{1,13}})?"
_LINE = re.compile(rf"([0-9a-f]{{16}}) ({_NUMBER}) ({_NUMBER})((?: {_SHARE}){{0,{PARTS_OF_LINE}}}) \.")


@dataclass(frozen=True, slots=True)
class KeptShare:
    """In thousandths of the time of a token, and of that of a prompt. `path`: as it was; None for a device.

    `mark`: of a device with its times, or of the two ends of the path.
    """

    mark: str
    token: int
    prompt: int
    path: DevicePath | None = None


@dataclass(frozen=True, slots=True)
class SplitFactors:
    """Of rates, None for what was not measured. `model`: 16 letters.

    `shares` without the rest; empty where they are not known.
    """

    model: str
    generate: float | None
    prompt: float | None
    shares: tuple[KeptShare, ...] = ()

    @property
    def devices(self) -> frozenset[str]:
        """Their marks."""
        return frozenset(one.mark for one in self.shares if one.path is None)

    def is_on(self, token: Sequence[PredictedPart]) -> bool:
        """Its paths were about as those that it is predicted with."""
        now = {path_mark(one.ends): [one.path] for one in token if one.path is not None}
        return all(is_now(one, now) for one in self.shares)


@lru_cache(maxsize=64)  # a plan asks for the same few thousands of times
def device_mark(label: str, speed: DeviceSpeed | None) -> str:
    """Another one as soon as the device has other times."""
    times = speed.times if speed is not None else ()
    return _short(f"{label} {times!r}")


@lru_cache(maxsize=64)
def path_mark(ends: tuple[str, str]) -> str:
    """By time_parts.ends_of."""
    return _short(repr(ends))


def part_of(one: PredictedPart) -> Part:
    """Under which its factor is learned."""
    if one.path is not None:
        return "path", path_mark(one.ends)
    return ("device", device_mark(one.device, one.speed)) if one.device else REST


def by_part(parts: Sequence[PredictedPart]) -> dict[Part, float]:
    """Seconds."""
    found: dict[Part, float] = {}
    for one in parts:
        part = part_of(one)
        found[part] = found.get(part, 0.0) + one.seconds
    return found


def shares_of(parts: Sequence[PredictedPart]) -> dict[Part, float]:
    """Of 1."""
    whole = total(parts)
    return {part: seconds / whole for part, seconds in by_part(parts).items()}


def kept_shares(token: Sequence[PredictedPart], prompt: Sequence[PredictedPart]) -> tuple[KeptShare, ...]:
    """Empty where they are too many."""
    of_token, of_prompt = shares_of(token), shares_of(prompt)
    paths = {part_of(one): _rounded(one.path) for one in token if one.path is not None}
    parts = sorted({*of_token, *of_prompt} - {REST})
    if len(parts) > PARTS_OF_LINE:
        return ()
    return tuple(
        KeptShare(
            part[1],
            int(THOUSANDTHS * of_token.get(part, 0.0)),
            int(THOUSANDTHS * of_prompt.get(part, 0.0)),
            paths.get(part),
        )
        for part in parts
    )


def is_now(share: KeptShare, paths: Mapping[str, Sequence[DevicePath]]) -> bool:
    """A device, or a path about as it was; `paths` by their marks, as they are now."""
    then = share.path
    return then is None or any(_is_like(then, one) for one in paths.get(share.mark, ()))


def show(kept: SplitFactors) -> str:
    """A line; its end shows that it is whole."""
    numbers = [f"{one:.4f}" if one is not None else "-" for one in (kept.generate, kept.prompt)]
    return " ".join([kept.model, *numbers, *map(_shown, kept.shares), "."])


def parsed(text: str) -> SplitFactors | None:
    """None for what `show` has not made."""
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    generate, prompt = (None if number == "-" else float(number) for number in found.groups()[1:3])
    shares = tuple(_shares(found[4]))
    is_whole = (
        sum(one.token for one in shares) <= THOUSANDTHS and sum(one.prompt for one in shares) <= THOUSANDTHS
    )
    factors = [one for one in (generate, prompt) if one is not None]
    if not is_whole or not all(LEAST_FACTOR <= one <= MOST_FACTOR for one in factors):
        return None
    return SplitFactors(found[1], generate, prompt, shares)


def _shown(share: KeptShare) -> str:
    text = f"{share.mark}:{share.token}:{share.prompt}"
    path = share.path
    return text if path is None else f"{text}:{round(1e6 * path.rtt)}:{round(path.rate or 0)}"


def _shares(text: str) -> Iterator[KeptShare]:
    for word in text.split():
        mark, token, prompt, *path = word.split(":")
        seen = DevicePath(int(path[0]) / 1e6, int(path[1]) or None) if path else None
        yield KeptShare(mark, int(token), int(prompt), seen)


def _rounded(path: DevicePath) -> DevicePath:
    """As a line holds it."""
    rtt, rate = min(round(1e6 * path.rtt), 10**9 - 1), min(round(path.rate or 0), 10**13 - 1)
    return DevicePath(rtt / 1e6, rate or None)


def _is_like(then: DevicePath, now: DevicePath) -> bool:
    return _about(then.rtt, now.rtt, _SAME_RTT) and _about(
        then.seconds(AT_ONCE), now.seconds(AT_ONCE), _SAME_RATE
    )


def _about(one: float, other: float, times: float) -> bool:
    less, more = sorted((one, other))
    return more - less <= _SAME_SECONDS or more <= times * less


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_MARK_LETTERS]
