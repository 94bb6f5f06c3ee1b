"""`meshd capacity` and `meshd plan` over real daemons: devices are timed, and nothing is loaded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from meshd.fleet.fleet import LocalNode, model_ready

from tests.e2e.models import own_cache, smollm2, stock_text
from tests.e2e.nodes import PROMPT, Fleet, api_of, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]
QUIET = ("--threads", "1")
MEASURED_SECONDS = 900.0  # of a test in which each node measures its devices, which waits for a busy machine


def test_two_nodes_are_measured_and_planned_with(tmp_path: Path) -> None:
    """The cache is the fleet's own, so that the speeds are measured here."""

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, (worker,) = await fleet.workers(smollm2(), options=QUIET)
            other = await fleet.worker("other", *QUIET, token=token)
            await other.until(lambda status: len(status.peers) == 1)
            assert [one.weight_bytes_s for one in (await worker.status()).devices] == [None]
            measured = await cli(other.spec.home, "capacity", "--json")
            assert measured.returncode == 0, measured.stderr
            capacity = json.loads(measured.stdout)
            assert [one["node"] for one in capacity["devices"]] == ["other", "worker-0"]
            for device in capacity["devices"]:
                assert 0 < device["free_bytes"] <= device["total_bytes"]
                assert device["weight_bytes_s"] > 1e8 and device["flops"] > 1e8
            (path,) = [one for one in capacity["paths"] if one["from"] == "other"]
            assert path["to"] == "worker-0" and path["rtt_ms"] > 0
            assert path["bytes_s"] > 1e6, "a path that was never full is filled, to know its rate"
            await check_storage(other, capacity)
            [known] = (await worker.status()).devices
            [told] = [one for one in capacity["devices"] if one["node"] == "worker-0"]
            assert (known.name, known.weight_bytes_s) == (told["device"], told["weight_bytes_s"])

            planned = await cli(
                other.spec.home, "plan", "--model", str(smollm2()), "--streams", "2", "--json"
            )
            assert planned.returncode == 0, planned.stderr
            reply = json.loads(planned.stdout)
            best = reply["plans"][reply["choice"]]
            assert sum(node["layers"] for node in best["nodes"]) == 30 and best["measured"]
            assert best["slots"] == 2 and best["ctx_size"] == 8192
            assert best["generate_tok_s"] > 1 and best["prompt_tok_s"] > 1 and best["answer_s"] > 0
            for plan in reply["plans"]:
                drafts = plan["speculation"]
                assert drafts["repetitive_tok_s"] > 0 and not drafts["measured"]
                assert drafts["prose_tok_s"] == plan["generate_tok_s"] and drafts["model_tokens"] == 0
            splits = {tuple(node["node"] for node in plan["nodes"]) for plan in reply["plans"]}
            assert {("other",), ("worker-0",)} <= splits and any(len(nodes) == 2 for nodes in splits)
            status = await worker.status()
            assert status.children == (), "nothing was reserved"

    play(check())


def test_a_plan_for_what_is_no_model_and_for_what_fits_nowhere(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", *QUIET, "--memory", "260M")  # of which its own plans know
            await worker.token()
            bad = tmp_path / "bad.gguf"
            bad.write_bytes(b"GGUF nothing")
            refused = await cli(worker.spec.home, "plan", "--model", str(bad))
            assert refused.returncode == 1 and "bad.gguf" in refused.stderr and refused.stdout == ""
            missing = await cli(worker.spec.home, "plan", "--model", str(tmp_path / "none.gguf"))
            assert missing.returncode == 1 and "no model file" in missing.stderr
            huge = await cli(worker.spec.home, "plan", "--model", str(smollm2()), "--ctx-size", str(1 << 24))
            assert huge.returncode == 1 and "does not fit" in huge.stderr and "--ctx-size" in huge.stderr
            assert "worker CPU has " in huge.stderr and "(260 MiB free, less " in huge.stderr
            fitting = re.search(r"`--ctx-size (\d+)`", huge.stderr)
            assert fitting is not None and int(fitting[1]) < 8192, "no longer than it was trained for"
            shorter = await cli(worker.spec.home, "plan", "--model", str(smollm2()), "--ctx-size", fitting[1])
            assert shorter.returncode == 0, shorter.stderr

    play(check())


def test_a_head_uses_the_workers_with_which_the_model_is_fastest(tmp_path: Path) -> None:
    """Test that of two that are alike one is enough, where a prompt takes no longer than a token."""
    cache = own_cache(tmp_path)

    async def check() -> None:
        async with Fleet(tmp_path / "before", cache=cache) as fleet:
            worker = await fleet.worker("alone", *QUIET)
            await worker.token()
            planned = await cli(worker.spec.home, "plan", "--model", str(smollm2()))
            assert planned.returncode == 0, planned.stderr
        as_measured = cache / "device-speeds"
        lines = [line.split()[0] for line in as_measured.read_text().splitlines()]
        as_measured.write_text("".join(f"{key} 1:300000,128:300000\n" for key in lines))
        async with Fleet(tmp_path, cache=cache) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2(), options=QUIET)
            head = await fleet.head(smollm2(), "--split", "auto", "--device", "none", token=token)
            status = await fleet.ready(head)
            model = model_of(status)
            assert [part.layers for part in model.split if part.layers] == [30], model.split
            assert "not split: it runs on `worker-" in model.reason
            assert model.predicted is not None and (model.predicted.generate_tok_s or 0) > 1
            assert model.measured is None
            api = api_of(status)
            assert await api.complete(PROMPT, 24) == stock_text(smollm2(), 24)
            status = await head.until(lambda now: model_of(now).measured is not None)
            measured = model_of(status).measured
            assert measured is not None and measured.generate_tok_s is not None
            assert measured.prompt_tok_s is None, "the prompt was too short to tell"

    play(check())


def test_a_head_alone_starts_at_once_and_takes_in_a_worker_that_helps(tmp_path: Path) -> None:
    """Test with replaced measures, a slow head and a fast worker; `plan` and `why` agree with the head."""
    caches: dict[str, Path] = {}
    for name in ("head", "worker"):
        (tmp_path / f"cache of {name}").mkdir()
        caches[name] = own_cache(tmp_path / f"cache of {name}")
    alone = ("--split", "auto", "--ctx-size", "512", "--", "-t", "1")

    async def check() -> None:
        async with Fleet(tmp_path / "before", cache=caches["head"]) as fleet:
            head = await fleet.head(smollm2(), *alone)
            status = await fleet.ready(head)
            assert [part.node for part in model_of(status).split if part.layers] == ["head"]
            assert model_of(status).estimated == ("head",) and model_of(status).predicted is None
            assert await api_of(status).complete(PROMPT, 24) == stock_text(smollm2(), 24)
            status = await head.until(lambda now: model_ready(now) and not model_of(now).estimated)
            assert model_of(status).predicted is not None and model_of(status).measuring_seconds > 0
        lines = (caches["head"] / "device-speeds").read_text().splitlines()
        for name, nanoseconds in (("head", 20_000_000), ("worker", 300_000)):
            times = f"1:{nanoseconds},128:{nanoseconds}"
            file = caches[name] / "device-speeds"
            file.write_text("".join(f"{line.split()[0]} {times}\n" for line in lines))
        async with Fleet(tmp_path, cache=caches["head"]) as fleet:
            head = await fleet.head(smollm2(), *alone)
            status = await fleet.ready(head)
            assert "not split: it runs on `head` alone" in model_of(status).reason
            worker = ("worker", "--threads", "1")
            await fleet.worker(*worker, model=smollm2(), token=await head.token(), cache=caches["worker"])
            status = await head.until(
                lambda now: model_ready(now) and any(part.node == "worker" for part in model_of(now).split)
            )
            comparison = model_of(status).split_why.partition("; ")[0]
            assert comparison.startswith("not split: it runs on `worker` alone, while ")
            assert await api_of(status).complete(PROMPT, 24) == stock_text(smollm2(), 24)
            planned = await cli(head.spec.home, "plan", "--model", str(smollm2()))
            explained = await cli(head.spec.home, "why")
            for said in (planned, explained):
                assert "not split: it runs on `worker` alone, while " in said.stdout, said

    play(check())


def test_a_plan_while_the_model_is_loaded(tmp_path: Path) -> None:
    """Test that what the model takes counts as free, and its answers leave the prediction as it is."""
    lent = (*QUIET, "--memory", "600M")
    layers = ("--layers", "worker-0=0-14", "--layers", "worker-1=15-29")

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, (worker, _) = await fleet.workers(smollm2(), smollm2(), options=lent)
            await worker.until(lambda status: len(status.peers) == 1)
            before = await planned(worker, *layers)
            assert [one["layers"] for one in before["nodes"]] == [15, 15]
            head = await fleet.head(smollm2(), *layers, "--set", "serve.output=worker", token=token)
            status = await fleet.ready(head)
            answers = model_of(status).answers
            at_load = model_of(status).predicted
            assert answers is not None and at_load is not None
            await api_of(status).complete(PROMPT, 48)
            await head.until(lambda now: model_of(now).measured is not None)
            after = await planned(head, *layers)
            assert (after["slots"], after["ctx_size"]) == (answers.slots, answers.tokens)
            asked = await cli(head.spec.home, "why", "--json")
            assert asked.returncode == 0, asked.stderr
            why = json.loads(asked.stdout)
            assert why["advice"]["generate_tok_s"] == pytest.approx(after["generate_tok_s"], rel=0.02)
            assert why["generate_tok_s_at_load"] == at_load.generate_tok_s
            assert why["ways"]["tensors_tok_s"] > 0 and "by tensors over `worker-0`" in why["ways"]["text"]
            if after["generate_tok_s"] != pytest.approx(at_load.generate_tok_s, rel=0.02):
                assert why["since_load"], "the input that differs has a name"

    play(check(), seconds=MEASURED_SECONDS)


async def check_storage(asking: LocalNode, capacity: dict[str, Any]) -> None:
    """Disks, and the model that the other node was started with."""
    mine, other = capacity["storage"]
    assert [one["node"] for one in (mine, other)] == ["other", "worker-0"]
    assert mine["free_bytes"] > 0 and 0 <= mine["cache_room_bytes"] <= 20 << 30
    assert other["free_bytes"] == pytest.approx(mine["free_bytes"], rel=0.5), "they share a disk"
    assert [one["name"] for one in other["models"]] == [smollm2().stem] and other["more_models"] == 0
    assert other["models"][0]["bytes"] == smollm2().stat().st_size
    storage = (await asking.status()).storage
    assert storage is not None and storage.free_bytes and storage.models is not None
    while (fingerprint := other["models"][0]["fingerprint"]) is None:  # that node is hashing the file
        again = await cli(asking.spec.home, "capacity", "--json")
        _, other = json.loads(again.stdout)["storage"]
    listed = await cli(asking.spec.home, "model", "ls", "--json", MESHD_CACHE=str(asking.spec.cache))
    assert fingerprint in [one["fingerprint"] for one in json.loads(listed.stdout)]


async def planned(node: LocalNode, *words: str) -> dict[str, Any]:
    """The plan that is chosen, with the output on a worker as the head has it."""
    done = await cli(node.spec.home, "plan", "--model", str(smollm2()), *words, "--json")
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    chosen: dict[str, Any] = reply["plans"][reply["choice"]]
    return chosen
