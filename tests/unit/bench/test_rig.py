"""Test what a llama-server without meshd is told, from the command line of meshd's."""

import asyncio
from pathlib import Path

import pytest
from meshd.bench import rig
from meshd.bench.rig import alone, over_rpc

from tests.conformance.run import until

MESHD = ["-fit", "off", "-ngl", "31", "-dev", "MESH0,MESH1", "-ts", "0,15,16", "-lm", "none", "-c", "512"]


def test_over_upstreams_rpc_the_split_is_the_same() -> None:
    given = over_rpc(MESHD, 2)
    assert given[given.index("-dev") + 1] == "RPC0,RPC1"
    assert given[given.index("-ts") + 1] == "0,15,16"
    assert "--rpc" in given


@pytest.mark.parametrize(
    ("devices", "there"), [(("CUDA0", "CUDA1"), "CUDA0"), ((), "CPU")], ids=["on a GPU", "on a processor"]
)
def test_one_node_has_the_ends_where_meshd_has_them(devices: tuple[str, ...], there: str) -> None:
    """Its llama-server knows no device of a worker, and would not start with one."""
    given = alone([*MESHD, "-ot", r"^output\.weight=CPU,^token_embd\.weight=MESH11"], devices)
    assert given[given.index("-ot") + 1] == rf"^output\.weight=CPU,^token_embd\.weight={there}"
    assert given.count("-dev") == given.count("-ngl") == 1
    assert given[given.index("-dev") + 1] == (devices[0] if devices else "none")
    assert not {"-ts", "-lm", "MESH0,MESH1"} & set(given)
    assert given[:2] == ["-fit", "off"]


@pytest.mark.parametrize(
    ("said", "lent"),
    [("5\n", True), ("0", False), ("-1", False), ("4294967295", False), ("x", False), (None, False)],
)
def test_a_machine_says_whether_it_lends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, lent: bool
) -> None:
    place = tmp_path / "page_reporting_order"
    if said is not None:
        place.write_text(said)
    monkeypatch.setattr(rig, "_ORDER", place)
    assert rig.is_lent() is lent


async def test_it_is_given_back_when_the_socket_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig, "is_lent", lambda: True)
    monkeypatch.setattr(rig, "AT_HAND", 1 << 20)

    held = await rig.take_memory()
    assert held is not None
    giving = asyncio.get_running_loop().create_task(rig.give_back(held, tmp_path / "llama.sock"))
    await asyncio.sleep(3 * rig.SAMPLE_SECONDS)
    assert not held.closed
    (tmp_path / "llama.sock").touch()
    await until(giving.done)
    assert held.closed


async def test_nothing_is_held_where_none_is_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "is_lent", lambda: False)

    assert await rig.take_memory() is None
    await rig.give_back(None, tmp_path / "never")  # returns at once
