"""Indices that a kernel of a worker must not follow: rows, experts and states that are not there."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from meshd.rpc import mesh_protocol as wire

from tests.e2e.hostile_stage import I32, I64, NUMBERS, Case, Tensor, graph, message, tensor, write

FAILED = "index "
_KEPT = 3  # the uid of a graph


def _numbers(kind: int, *values: int) -> tuple[Tensor, bytes]:
    """A tensor of these, and the message that sets it."""
    made = tensor(2 << 20, len(values), kind=kind)
    return made, write(made, struct.pack(f"<{len(values)}{'i' if kind == I32 else 'q'}", *values))


def _result(at: int, name: str, sources: tuple[int, ...], *ne: int, **other: object) -> Tensor:
    return tensor(at, *ne, operation=NUMBERS[name], sources=sources, **other)  # type: ignore[arg-type]


def _get_rows(row: int) -> bytes:
    index, setting = _numbers(I32, row)
    result = _result(1 << 20, "GET_ROWS", (1, 2), 4, 1)
    return setting + graph([tensor(0, 4, 3), index, result], [2], uid=_KEPT)


def _set_rows(row: int) -> bytes:
    index, setting = _numbers(I64, row)
    table, values = tensor(0, 4, 3), tensor(1 << 20, 4, 1)
    result = replace(table, operation=NUMBERS["SET_ROWS"], sources=(2, 3, 1), viewed=1)
    return setting + graph([table, values, index, result], [3], uid=_KEPT)


def _mul_mat_id(expert: int) -> bytes:
    ids, setting = _numbers(I32, expert)
    result = _result(3 << 20, "MUL_MAT_ID", (1, 2, 3), 2, 1, 1)
    return setting + graph([tensor(0, 4, 2, 3), tensor(1 << 20, 4, 1, 1), ids, result], [3], uid=_KEPT)


def _add_id(row: int) -> bytes:
    ids, setting = _numbers(I32, row)
    result = _result(3 << 20, "ADD_ID", (1, 2, 3), 4, 1, 1)
    return setting + graph([tensor(0, 4, 1, 1), tensor(1 << 20, 4, 3), ids, result], [3], uid=_KEPT)


def _ssm_scan(sequence: int) -> bytes:
    """A state space model of one head with four states."""
    ids, setting = _numbers(I32, sequence)
    state, rest = tensor(0, 4, 1, 1, 1), [tensor(64 * number, 1) for number in (1, 2, 3)]
    result = _result(3 << 20, "SSM_SCAN", (1, 2, 3, 4, 5, 6, 7), 5, parameters=(1,))
    return setting + graph([state, *rest, tensor(256, 4), tensor(320, 4), ids, result], [7])


def _computed_again(make: Callable[[int], bytes], kind: int) -> bytes:
    """A graph that is right, then another index in its tensor, then the same graph again."""
    return make(0) + _numbers(kind, 1 << 20)[1] + message(wire.COMPUTE, _KEPT, 0, 0)


INDICES: Mapping[str, Case] = {
    **{
        f"{make.__name__[1:]} {index}": Case(f"{FAILED}{index} of ", partial(make, index))
        for make in (_get_rows, _set_rows, _mul_mat_id, _add_id, _ssm_scan)
        for index in (-1, 3, (1 << 31) - 1)
    },
    "get_rows again": Case(FAILED, lambda: _computed_again(_get_rows, I32)),
    "set_rows again": Case(FAILED, lambda: _computed_again(_set_rows, I64)),
    "mul_mat_id again": Case(FAILED, lambda: _computed_again(_mul_mat_id, I32)),
}
