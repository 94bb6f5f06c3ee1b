"""`meshd capacity` and `meshd plan` over real daemons: devices are timed, and nothing is loaded."""

import json
from pathlib import Path

import pytest

from tests.e2e.models import own_cache, smollm2
from tests.e2e.nodes import Fleet, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]
QUIET = ("--threads", "1")


def test_two_nodes_are_measured_and_planned_with(tmp_path: Path) -> None:
    """The cache is the fleet's own, so that the speeds are measured here."""

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, (worker,) = await fleet.workers(None, options=QUIET)
            other = await fleet.worker("other", *QUIET, token=token)
            await other.until(lambda status: len(status.peers) == 1)
            measured = await cli(other.spec.home, "capacity", "--json")
            assert measured.returncode == 0, measured.stderr
            capacity = json.loads(measured.stdout)
            assert [one["node"] for one in capacity["devices"]] == ["other", "worker-0"]
            for device in capacity["devices"]:
                assert 0 < device["free_bytes"] <= device["total_bytes"]
                assert device["weight_bytes_s"] > 1e8 and device["flops"] > 1e8
            (path,) = [one for one in capacity["paths"] if one["from"] == "other"]
            assert path["to"] == "worker-0" and path["rtt_ms"] > 0

            planned = await cli(
                other.spec.home, "plan", "--model", str(smollm2()), "--streams", "2", "--json"
            )
            assert planned.returncode == 0, planned.stderr
            reply = json.loads(planned.stdout)
            best = reply["plans"][reply["choice"]]
            assert sum(node["layers"] for node in best["nodes"]) == 30 and best["measured"]
            assert best["slots"] == 2 and best["ctx_size"] == 8192
            assert best["generate_tok_s"] > 1 and best["prompt_tok_s"] > best["generate_tok_s"]
            splits = {tuple(node["node"] for node in plan["nodes"]) for plan in reply["plans"]}
            assert {("other",), ("worker-0",)} <= splits and any(len(nodes) == 2 for nodes in splits)
            status = await worker.status()
            assert status.children == (), "nothing was reserved"

    play(check())


def test_a_plan_for_what_is_no_model_and_for_what_fits_nowhere(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", *QUIET)
            await worker.token()
            bad = tmp_path / "bad.gguf"
            bad.write_bytes(b"GGUF nothing")
            refused = await cli(worker.spec.home, "plan", "--model", str(bad))
            assert refused.returncode == 1 and "bad.gguf" in refused.stderr and refused.stdout == ""
            missing = await cli(worker.spec.home, "plan", "--model", str(tmp_path / "none.gguf"))
            assert missing.returncode == 1 and "no model file" in missing.stderr
            huge = await cli(worker.spec.home, "plan", "--model", str(smollm2()), "--ctx-size", str(1 << 24))
            assert huge.returncode == 1 and "does not fit" in huge.stderr and "--ctx-size" in huge.stderr

    play(check())
