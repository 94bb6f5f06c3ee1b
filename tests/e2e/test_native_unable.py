"""Devices that lack operations: found out while the model is loaded, and said; never crashed into."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.model.weights_index import encode_index

from tests.e2e.half_able import (
    FLASH_ATTN,
    MUL,
    MUL_MAT,
    Q8_0,
    RMS_NORM,
    ROPE,
    SET_ROWS,
    Lack,
    half_able,
)
from tests.e2e.models import patched, smollm2, text_alone
from tests.e2e.native_rig import Head, Worker, index_of

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


@contextmanager
def head_of(folder: Path, *lacks: Lack, extra: tuple[str, ...] = ()) -> Iterator[tuple[Head, str]]:
    """A head with one worker that lacks these, and the worker's endpoint."""
    binaries, model = patched().binaries, smollm2()
    with (
        Worker(binaries[RPC_SERVER], folder, weights=[model]) as worker,
        half_able(worker.port, lacks) as proxy,
        Head(
            binaries[LLAMA_SERVER],
            folder,
            model,
            [proxy.endpoint],
            index=encode_index(index_of([model])),
            extra=extra,
            ready=False,
        ) as head,
    ):
        yield head, proxy.endpoint


@pytest.mark.parametrize(
    ("operation", "name"), [(SET_ROWS, "SET_ROWS"), (RMS_NORM, "RMS_NORM"), (ROPE, "ROPE"), (MUL, "MUL")]
)
def test_a_device_that_cannot_compute_its_layers_is_told(tmp_path: Path, operation: int, name: str) -> None:
    """What writes to the cache, which lies there; what comes between; what uses weights."""
    with head_of(tmp_path, Lack(operation)) as (head, endpoint):
        assert head.wait_ready_or_end() == 1, head.output[-2000:]
        assert head.report is not None
        line = head.report.wait("unsupported ")
        assert line.split(" ")[:4] == ["unsupported", endpoint, "0", name]
        assert f"cannot compute {name}" in head.output
        assert not any(line.startswith("lost ") for line in head.report.lines)


def test_weights_go_elsewhere_where_their_operation_is_missing(tmp_path: Path) -> None:
    """The output's type is not multiplied there: it stays on the head, and nothing else is moved."""
    with head_of(tmp_path, Lack(MUL_MAT, Q8_0)) as (head, _endpoint):
        assert head.wait_ready_or_end() is None, head.output[-2000:]
        assert head.report is not None
        names = [line.split(" ", 5)[5] for line in head.report.lines if line.startswith("tensor ")]
        assert "token_embd.weight" not in names and len(names) == 271
        assert all(line.split(" ")[2] == "local" for line in head.report.lines if line.startswith("tensor "))
        assert head.complete() == text_alone(smollm2())


def test_without_flash_attention_there_it_is_done_without(tmp_path: Path) -> None:
    binaries = patched().binaries
    with Head(binaries[LLAMA_SERVER], tmp_path, smollm2(), [], extra=("-fa", "off")) as alone:
        text = alone.complete()
    with head_of(tmp_path, Lack(FLASH_ATTN)) as (head, _endpoint):
        assert head.wait_ready_or_end() is None, head.output[-2000:]
        assert head.complete() == text
        assert "Flash Attention not supported, set to disabled" in head.output


def test_flash_attention_that_was_asked_for_is_an_operation_as_others(tmp_path: Path) -> None:
    with head_of(tmp_path, Lack(FLASH_ATTN), extra=("-fa", "on")) as (head, endpoint):
        assert head.wait_ready_or_end() == 1, head.output[-2000:]
        assert head.report is not None
        assert head.report.wait("unsupported ").startswith(f"unsupported {endpoint} 0 FLASH_ATTN_EXT ")
