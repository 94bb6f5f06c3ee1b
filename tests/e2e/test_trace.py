"""A trace of two CPU workers adds up: nobody does two things at once, and each step passes the stages."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.e2e.models import smollm2
from tests.e2e.test_bench import module

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

PROMPT_STEPS, TOKEN_STEPS = 3, 4  # a plan of two CPU workers has micro batches of 128 tokens
SECONDS = 1e-6  # what is lost of nanoseconds in JSON


def computed(step: dict[str, Any]) -> dict[str, Any]:
    """The span in which it computed, of which there is one."""
    [found] = [span for span in step["spans"] if span["doing"] == "compute"]
    return dict(found)


def test_two_workers(tmp_path: Path) -> None:
    smollm2()
    picture = tmp_path / "trace.svg"
    asked = ("--prompt", "300", "--tokens", str(TOKEN_STEPS + 1), "--svg", str(picture), "--json")
    done = module(tmp_path, "tests.bench.trace", *asked)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    prompt, tokens = found["parts"]
    assert (prompt["name"], tokens["name"]) == ("prompt", "tokens")
    assert 0 == prompt["begin"] < prompt["end"] == tokens["begin"] < tokens["end"]
    first, second = found["devices"]
    for device in (first, second):
        assert len(device["steps"]) == PROMPT_STEPS + TOKEN_STEPS
        spans = [span for step in device["steps"] for span in step["spans"]]
        assert all(span["begin"] <= span["end"] for span in spans)
        assert all(before["end"] <= after["begin"] + SECONDS for before, after in pairwise(spans))
        assert all(computed(step)["end"] > computed(step)["begin"] for step in device["steps"])
    for before, after in zip(first["steps"], second["steps"], strict=True):
        assert computed(before)["end"] <= computed(after)["begin"], "what the first computes the second needs"
    assert any(span["doing"] == "wait" for span in second["steps"][0]["spans"]), "for the first stage"
    for part in (prompt, tokens):
        whole = part["end"] - part["begin"]
        assert part["sums"].keys() == {"head", first["name"], second["name"]}
        for one in part["sums"].values():
            assert sum(one.values()) == pytest.approx(whole, abs=SECONDS)
            assert all(-SECONDS <= time <= whole for time in one.values())
    assert ElementTree.fromstring(picture.read_text()).findall("{http://www.w3.org/2000/svg}rect")
