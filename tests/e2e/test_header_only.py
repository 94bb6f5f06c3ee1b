"""A head that has only the header of its model, and the tensors outside the layers: over real daemons."""

import json
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.model.gguf import read_header
from meshd.model.layers import is_of_layer
from meshd.model.status import ModelState
from meshd.model.weights_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import NAME, Homes, connected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.random_models import random_model
from tests.e2e.test_weights_from_members import fetched

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 16
SERVED = f"mesh:{NAME}"
ARCHITECTURES = ("gpt-oss", "deepseek2", "qwen3next")  # experts, absorbed attention, states
HEADER_ONLY = ("--header-only", "--set", "serve.output=head", "--workers", "a")


def read() -> tuple[bytes, list[tuple[str, int]], int]:
    """The model, its tensors with their sizes, and where the first begins."""
    data = smollm2().read_bytes()
    header = read_header(lambda at, count: data[at : at + count], size=len(data), label="smollm2")
    return data, [(one.name, one.size) for one in header.tensors], header.data_offset


def least() -> int:
    """Bytes of the header, and of the tensors that belong to no layer."""
    _, tensors, begin = read()
    return begin + sum(size for name, size in tensors if not is_of_layer(name))


def on_disk(folder: Path) -> int:
    return sum(
        path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )


async def failed(head: LocalNode) -> str:
    """Why the model cannot be loaded."""
    status = await head.until(lambda s: s.model is not None and s.model.state is ModelState.FAILED)
    return model_of(status).reason


async def lost(fleet: Fleet, node: LocalNode) -> None:
    await node.stop()
    fleet.forget(node)


@pytest.mark.parametrize("output", ["head", "worker"])
def test_it_serves_what_workers_have(tmp_path: Path, output: str) -> None:
    """And the second time without anybody that gives models."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            giver = await homes.start("giver")
            token = await giver.token()
            homes.has("giver", smollm2())
            mean = ("--set", "node.give_models=off")
            for name in ("a", "b"):
                await homes.start(name, *mean, "--model", str(homes.has(name, smollm2())), token=token)
            await connected(giver, 2)
            words = (
                "--header-only",
                "--set",
                f"serve.output={output}",
                "--workers",
                "a,b",
                "--min-workers",
                "2",
            )
            for again in (False, True):
                head = await homes.serve("head", SERVED, *words, *SAME_THREADS, token=token)
                status = await fleet.ready(head)
                assert await api_of(status).complete(PROMPT, TOKENS) == reference
                model = model_of(status)
                assert model.name == NAME and model.weights_network_bytes == 0
                assert {part.node for part in model.split if part.layers} == {"a", "b"}
                disk = on_disk(homes.cache("head") / "models")
                assert least() <= disk < least() + 4 * PIECE_BYTES
                await lost(fleet, head)
                if not again:
                    await lost(fleet, giver)
            log = (head.spec.home / "node.log").read_text()
            said = f"only the header of `{NAME}` is here; fingerprint (as reported by giver): "
            first, second, third = log.split(said)
            fetched = f"fetched {NAME} from giver"
            assert fetched in first and fetched not in second + third

    play(check())


def test_weights_of_other_architectures_are_known_by_their_hashes(tmp_path: Path) -> None:
    """All of them: what llama-server wrote without asking would end the load."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            files = [str(random_model(name)) for name in ARCHITECTURES]
            worker = await homes.start("a", "--model", *files)
            token = await worker.token()
            for number, name in enumerate(ARCHITECTURES):
                served, output = f"mesh:{random_model(name).stem}", ("head", "worker")[number % 2]
                words = (
                    "--header-only",
                    "--set",
                    f"serve.output={output}",
                    *SAME_THREADS,
                    *SAME_BATCHES,
                    "-np",
                    "1",
                )
                head = await homes.serve("head", served, *words, token=token)
                status = await fleet.ready(head)
                assert await api_of(status).complete(PROMPT, TOKENS) == alone(random_model(name), TOKENS), (
                    name
                )
                assert model_of(status).weights_network_bytes == 0, name
                await lost(fleet, head)

    play(check())


def test_what_a_worker_lacks_comes_from_members(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            homes.has("giver", smollm2())
            giver = await homes.start("giver")
            token = await giver.token()
            await homes.start("a", token=token)
            await connected(giver, 1)
            head = await homes.serve("head", SERVED, *HEADER_ONLY, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert fetched(head)["a"].keys() == {"giver"}
            assert model_of(status).weights_network_bytes == 0
            assert await api_of(status).complete(PROMPT, TOKENS) == reference

    play(check())


@pytest.mark.parametrize("keeps", ["0", "20G"])
def test_what_nobody_gives_to_a_worker_is_told(tmp_path: Path, keeps: str) -> None:
    """It keeps nothing, or the member with the model has gone; it has the model later, and all is well."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            founder = await homes.start("b")
            token = await founder.token()
            homes.has("giver", smollm2())
            giver = await homes.start("giver", token=token)
            await connected(founder, 1)
            head = await homes.serve("head", SERVED, *HEADER_ONLY, *SAME_THREADS, token=token)
            await head.until(lambda s: s.model is not None and s.model.state is ModelState.WAITING)
            if keeps != "0":
                await lost(fleet, giver)
            worker = await homes.start("a", "--keep-weights", keeps, token=token)
            why = await failed(head)
            assert "worker a lacks tensor `blk." in why, why
            assert f"this node has only the header of `{NAME}`" in why and "--keep-weights" in why
            status = await head.until(lambda s: s.model is not None)
            assert model_of(status).weights_network_bytes == 0
            await lost(fleet, worker)
            await homes.start("a", "--model", str(homes.has("a", smollm2())))
            status = await head.until(lambda s: s.model is not None and s.model.state is ModelState.READY)
            assert await api_of(status).complete(PROMPT, TOKENS) == reference

    play(check())


def test_it_is_no_model_for_anybody_else(tmp_path: Path) -> None:
    """Members are not offered it, workers and other heads do not use it, and the commands know what it is."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            giver = await homes.start("giver", "--model", str(homes.has("giver", smollm2())))
            token = await giver.token()
            head = await homes.serve("head", SERVED, "--header-only", *SAME_THREADS, token=token)
            await fleet.ready(head)
            [row] = json.loads((await homes.run("head", "ls", "--json")).stdout)
            assert (row["name"], row["problem"]) == (SERVED, "only its header is here")
            assert least() <= row["bytes"] < least() + 4 * PIECE_BYTES
            there = {node["node"]: (node["path"], node["complete"]) for node in row["nodes"]}
            path, complete = there["head"]
            assert not complete and there["giver"] == (None, True)
            [seen] = json.loads((await homes.run("giver", "ls", "--json")).stdout)
            assert [node["node"] for node in seen["nodes"]] == ["giver"]
            verified = await homes.run("head", "verify", SERVED)
            assert verified.returncode == 0 and "they are right" in verified.stdout, verified.stderr
            assert row["fingerprint"] in verified.stdout
            await lost(fleet, head)
            for role in ("worker", "serve"):
                refused = await cli(head.spec.home, role, "--model", path, **homes.variables("head"))
                assert refused.returncode == 1 and "is only the header of a model" in refused.stderr
            removed = await homes.run("head", "rm", SERVED, "--yes")
            assert removed.returncode == 0, removed.stderr
            assert on_disk(homes.cache("head") / "models") < PIECE_BYTES

    play(check())
