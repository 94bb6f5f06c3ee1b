"""Whether memory is held before a load, and when it is given back."""

import asyncio
from pathlib import Path

import pytest
from meshd.bench import memory

from tests.conformance.run import run, until


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
    monkeypatch.setattr(memory, "_ORDER", place)
    assert memory.is_lent() is lent


def test_it_is_given_back_when_the_socket_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "is_lent", lambda: True)
    monkeypatch.setattr(memory, "AT_HAND", 1 << 20)

    async def main() -> None:
        held = await memory.take_memory()
        assert held is not None
        giving = asyncio.get_running_loop().create_task(memory.give_back(held, tmp_path / "llama.sock"))
        await asyncio.sleep(3 * memory.SAMPLE_SECONDS)
        assert not held.closed
        (tmp_path / "llama.sock").touch()
        await until(giving.done)
        assert held.closed

    run(main())


def test_nothing_is_held_where_none_is_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "is_lent", lambda: False)

    async def main() -> None:
        assert await memory.take_memory() is None
        await memory.give_back(None, tmp_path / "never")  # returns at once

    run(main())
