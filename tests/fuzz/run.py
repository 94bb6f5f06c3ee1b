"""Drives targets: makes inputs, feeds them, watches errors and memory."""

import gc
import random
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target

TRACE_EVERY = 97  # inputs, at least; tracing costs several times the work itself
MOST_TRACED = 1000  # of a target: beginning and ending to trace leaves some 4 KB in the process each time
MOST_GROWTH_BYTES = 8 << 20  # of the process over the second half of a target's inputs, when all is warm
_PAGE = 4096


class Found(AssertionError):
    """An input that did what none may do; the message says how to repeat it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one target with its inputs."""

    name: str
    inputs: int
    refused: int
    seconds: float
    slowest_ms: float
    peak_bytes: int
    growth_bytes: int


def make_input(target: Target, seed: int, number: int) -> bytes:
    """Input `number` of a run: the same for the same seed, whatever came before it."""
    rng = random.Random(seed * 1_000_003 + number)
    return target.make(rng, target.samples)


def run_target(target: Target, *, inputs: int, seed: int, only: int | None = None) -> Outcome:
    """Feed `inputs` inputs, or input number `only` alone. Raises Found."""
    for sample in target.samples:
        _check_sample(target, sample)
    numbers = range(inputs) if only is None else range(only, only + 1)
    every = max(TRACE_EVERY, inputs // MOST_TRACED)
    refused = 0
    slowest = peak = 0.0
    begin, resident = time.perf_counter(), 0
    for number in numbers:
        if number == inputs // 2:
            resident = resident_bytes()
        data = make_input(target, seed, number)
        traced = number % every == 0
        if traced:
            tracemalloc.start()
        began = time.perf_counter()
        try:
            target.feed(data)
        except target.allowed:
            refused += 1
        except Exception as error:
            raise Found(_report(target, seed, number, data, f"{type(error).__name__}: {error}")) from error
        finally:
            slowest = max(slowest, time.perf_counter() - began)
            if traced:
                peak = max(peak, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
        if peak > target.most_bytes:
            raise Found(_report(target, seed, number, data, f"{peak:.0f} bytes held"))
    gc.collect()
    growth = resident_bytes() - resident if resident else 0
    if growth > MOST_GROWTH_BYTES:
        raise Found(f"{target.name}: the process grew by {growth} bytes over {len(numbers)} inputs")
    seconds = time.perf_counter() - begin
    return Outcome(target.name, len(numbers), refused, seconds, slowest * 1000, int(peak), max(0, growth))


def _check_sample(target: Target, sample: bytes) -> None:
    """A sample may be one message of several: what it must not do is break the target."""
    try:
        target.feed(sample)
    except target.allowed:
        pass


def _report(target: Target, seed: int, number: int, data: bytes, what: str) -> str:
    shown = data[:400].hex() + ("…" if len(data) > 400 else "")
    again = f"python -m tests.fuzz --target {target.name} --seed {seed} --only {number}"
    return f"{target.name}: {what}\n  again: {again}\n  input ({len(data)} bytes): {shown}"


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0  # not Linux: the traced peaks must do
