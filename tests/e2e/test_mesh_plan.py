"""`meshd capacity` and `meshd plan` over real daemons: devices are timed, and nothing is loaded."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from meshd.fleet.fleet import LocalNode, model_ready
from meshd.head.survey import COMPUTES

from tests.e2e.api_client import Api
from tests.e2e.models import own_cache, smollm2, stock_text
from tests.e2e.nodes import PROMPT, Fleet, api_of, child_pid, cli, model_of, play, runs_anew
from tests.e2e.random_models import random_model
from tests.gguf_bytes import gguf, language_model

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
    """Of two that are alike one is enough, where a prompt takes no longer than a token."""
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
    """What was measured is replaced: the head is slow, the worker fast. `plan` and `why` agree with it."""
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


def test_the_second_model_of_a_group_is_split_by_speed_without_the_firsts_worker(
    tmp_path: Path,
) -> None:
    """That one computes, so it is not measured with the layers of another kind of model; the other one is.

    Each has a cache of its own, as on its own machine: what one has measured the other one does not know.
    """
    one, two = random_model("llama"), random_model("qwen3moe")
    file = tmp_path / "meshd.toml"
    file.write_text(
        '[serve]\nport = 0\nctx_size = 512\nsplit = "auto"\ndevices = ["none"]\n'
        f'[models.one]\nmodel = "{one}"\ngroup = "g"\n[models.two]\nmodel = "{two}"\ngroup = "g"\n'
    )

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token = ""
            for number in (0, 1):
                folder = tmp_path / f"cache of {number}"
                folder.mkdir()
                worker = await fleet.worker(
                    f"worker-{number}", *QUIET, model=one, token=token, cache=own_cache(folder)
                )
                token = token or await worker.token()
            spec = fleet.spec("head", "serve", "--config", str(file), "--split", "auto", token=token)
            head = await fleet.start(spec)
            status = await head.until(lambda now: now.api is not None and len(now.peers) == 2)
            for name in ("one", "two"):
                await Api(api_of(status).url, model=name).complete(PROMPT, 8)
            status = await head.until(lambda now: all(model.predicted is not None for model in now.models))
            first, second = status.models
            (busy,) = [part.node for part in first.split if part.layers]
            (free,) = [part.node for part in second.split if part.layers]
            assert {busy, free} == {"worker-0", "worker-1"}
            assert f"without `{busy}`: {COMPUTES}" in second.reason, second.reason

    play(check())


def test_as_many_workers_take_part_as_their_user_asks_for(tmp_path: Path) -> None:
    """`plan` predicts what status shows, and after an answer `why` predicts what `plan` does."""

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2(), options=QUIET)
            least = ("--split", "auto", "--min-workers", "2")
            head = await fleet.head(smollm2(), *least, token=token)
            # loaded by estimates, and after a loss as was measured meanwhile
            status = await head.until(lambda now: model_ready(now) and not model_of(now).estimated)
            lost = child_pid(status, "llama-server")
            os.kill(lost, signal.SIGKILL)
            status = await head.until(lambda now: model_ready(now) and runs_anew(now, "llama-server", lost))
            split = [(part.node, part.layers) for part in model_of(status).split if part.layers]
            assert {"worker-0", "worker-1"} <= {node for node, _ in split}
            at_load = model_of(status).predicted
            assert at_load is not None
            plan = await planned(head)
            assert [(one["node"], one["layers"]) for one in plan["nodes"]] == split
            assert (plan["prompt_tok_s"], plan["generate_tok_s"]) == pytest.approx(
                (at_load.prompt_tok_s, at_load.generate_tok_s), rel=0.02
            )
            await api_of(status).complete(PROMPT, 64)
            await head.until(lambda now: model_of(now).measured is not None)
            asked = await cli(head.spec.home, "why", "--json")
            assert asked.returncode == 0, asked.stderr
            why = json.loads(asked.stdout)
            reply = json.loads(
                (await cli(head.spec.home, "plan", "--model", str(smollm2()), "--json")).stdout
            )
            [now] = [
                one["generate_tok_s"]
                for one in reply["plans"]
                if [(node["node"], node["layers"]) for node in one["nodes"]] == split
            ]
            assert why["advice"]["generate_tok_s"] == pytest.approx(now, rel=0.02)
            latest = model_of(await head.status()).predicted  # measurements may have loaded it again
            assert latest is not None and why["generate_tok_s_at_load"] == latest.generate_tok_s
            if why["advice"]["generate_tok_s"] != pytest.approx(at_load.generate_tok_s, rel=0.02):
                assert why["since_load"], "the input that differs has a name"

    play(check())


def test_a_plan_while_the_model_is_loaded(tmp_path: Path) -> None:
    """What the model takes counts as free, and its answers leave the prediction as it is."""
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
            if after["generate_tok_s"] != pytest.approx(at_load.generate_tok_s, rel=0.02):
                assert why["since_load"], "the input that differs has a name"

    play(check(), seconds=MEASURED_SECONDS)


def test_a_plan_with_a_draft_model(tmp_path: Path) -> None:
    """The model as its own: its memory is counted, and no text gains by one that is as slow as itself."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", *QUIET)
            await worker.token()
            plain, drafted = await planned(worker), await planned(worker, "--draft-model", str(smollm2()))
            assert plain["speculation"]["model_tokens"] == drafted["speculation"]["model_tokens"] == 0
            assert drafted["ctx_size"] <= plain["ctx_size"]
            other = tmp_path / "other.gguf"
            metadata, tensors = language_model()
            other.write_bytes(gguf({**metadata, "tokenizer.ggml.model": "other"}, tensors))
            words = ("plan", "--model", str(smollm2()), "--draft-model", str(other))
            refused = await cli(worker.spec.home, *words)
            assert refused.returncode == 1 and "another vocabulary" in refused.stderr, refused.stderr

    play(check())


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


def test_a_plan_on_a_head_is_over_the_workers_that_it_uses(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            model = random_model("llama")
            token, (_, _, third) = await fleet.workers(model, None, model, options=QUIET)
            head = await fleet.head(model, "--workers", "worker-0,worker-2", "--device", "none", token=token)
            await fleet.ready(head)
            await head.until(lambda now: len(now.peers) == 3)

            crossing: dict[str, int] = {}  # of plans over one node, by its name

            async def planned(*options: str) -> tuple[set[str], dict[str, str]]:
                done = await cli(head.spec.home, "plan", "--model", str(model), "--json", *options)
                assert done.returncode == 0, done.stderr
                reply = json.loads(done.stdout)
                for plan in reply["plans"]:
                    if len(plan["nodes"]) == 1:
                        crossing[plan["nodes"][0]["node"]] = plan["load_bytes"]
                used = {node["node"] for plan in reply["plans"] for node in plan["nodes"]}
                return used, {one["node"]: one["why"] for one in reply["left_out"]}

            used, left_out = await planned()
            assert used == {"worker-0", "worker-2"}, used
            assert left_out == {"worker-1": "worker-1 is not named by `--workers`"}
            assert (await cli(third.spec.home, "pause")).returncode == 0
            used, left_out = await planned()
            assert used == {"worker-0"} and "is paused" in left_out["worker-2"]
            used, left_out = await planned("--workers", "worker-1")
            assert used == {"worker-1"} and set(left_out) == {"worker-0", "worker-2"}
            layers = model_of(await head.status()).split[0].layers
            used, _ = await planned("--workers", "worker-0,worker-1", "--tensor-split", f"1,{layers - 1}")
            assert used == {"worker-0", "worker-1"}
            used, _ = await planned("--device", "CPU", "--memory", "worker-0=1M")
            assert used == {"head"}, used
            misspelt = await cli(head.spec.home, "plan", "--model", str(model), "--workers", "nobody")
            assert misspelt.returncode == 1 and "no worker is called `nobody`" in misspelt.stderr
            assert crossing["worker-0"] == crossing["head"] == 0, "they have the file"
            assert crossing["worker-1"] > 100_000, "it has none"

    play(check())
