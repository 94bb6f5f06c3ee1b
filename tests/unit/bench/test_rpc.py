"""`meshd bench rpc`: pairs stay pairs, and their spread is shown."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.bench import rpc
from meshd.bench.llama import ChatAnswer
from meshd.bench.rpc import ComparedServers, as_table, compared
from meshd.cli.output import Output


def test_a_row_has_its_spread_without_the_pair_that_warmed_things_up() -> None:
    _, [row] = as_table([compared("decode", [1.0, 90.0, 99.0, 96.0], [50.0, 100.0, 100.0, 100.0])])
    assert row == (
        "decode",
        "96 (90 to 99) tok/s",
        "100 (100 to 100) tok/s",
        "0.960 (0.900 to 0.990)",
        "≥ 1.0",
        "no",
    )


def test_a_micro_batch_of_the_plan_is_compared_with_llamas_own_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else meshd could be fast because the plan slowed the direct connection down."""
    speeds = {"meshd": 120.0, "direct": 100.0, "own": 150.0}
    asked: list[str] = []

    async def measured(place: Path, *, prompt_tokens: int, tokens: int) -> ChatAnswer:
        assert (prompt_tokens, tokens) == (rpc.PROMPT_TOKENS, 1)
        asked.append(place.name)
        return ChatAnswer(speeds[place.name], 1.0, "", 1)

    monkeypatch.setattr(rpc, "measure", measured)
    loaded = ComparedServers(Path("meshd"), Path("direct"), own_batch=Path("own"))
    out = Output(io.StringIO(), io.StringIO(), {})
    rows = asyncio.run(rpc.compare_prompts(loaded, 2, out))
    assert [row.ratio for row in rows] == pytest.approx([1.2, 0.8])
    assert [row.held for row in rows] == [True, False]
    assert asked == ["meshd", "direct", "own"] * 3, "in turns, so that a ratio compares neighbours in time"
    [alone] = asyncio.run(rpc.compare_prompts(replace(loaded, own_batch=None), 2, out))
    assert alone.ratio == pytest.approx(1.2)
