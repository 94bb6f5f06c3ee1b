"""Indices that a kernel of the rpc-server must not follow: rows, experts and states that are not there."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.e2e.hostile_stage import I32, I64, Case, Make, Stage
from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

ADD_ID, MUL_MAT_ID, GET_ROWS, SET_ROWS, SSM_SCAN = 3, 30, 40, 42, 77
FAILED = "operation failed"  # what the server says of a graph that a kernel gave up


def _numbers(s: Stage, kind: int, *values: int) -> tuple[Tensor, bytes]:
    """A tensor 5 of these, and the message that sets it."""
    tensor = s.tensor(5, 2 << 20, len(values), kind=kind)
    data = struct.pack(f"<{len(values)}{'i' if kind == I32 else 'q'}", *values)
    return tensor, talk.set_tensor(tensor, data)


def _get_rows(s: Stage, row: int) -> bytes:
    index, setting = _numbers(s, I32, row)
    table, result = s.tensor(1, 0, 4, 3), s.tensor(3, 1 << 20, 4, 1, op=GET_ROWS, sources=(1, 5))
    return setting + talk.graph([table, index, result], (3,))


def _set_rows(s: Stage, row: int) -> bytes:
    index, setting = _numbers(s, I64, row)
    table, values = s.tensor(1, 0, 4, 3), s.tensor(2, 1 << 20, 4, 1)
    result = replace(table, id=3, op=SET_ROWS, sources=(2, 5, 1), view=1)
    return setting + talk.graph([table, values, index, result], (3,))


def _mul_mat_id(s: Stage, expert: int) -> bytes:
    ids, setting = _numbers(s, I32, expert)
    experts, values = s.tensor(1, 0, 4, 2, 3), s.tensor(2, 1 << 20, 4, 1, 1)
    result = s.tensor(3, 3 << 20, 2, 1, 1, op=MUL_MAT_ID, sources=(1, 2, 5))
    return setting + talk.graph([experts, values, ids, result], (3,))


def _add_id(s: Stage, row: int) -> bytes:
    ids, setting = _numbers(s, I32, row)
    values, table = s.tensor(1, 0, 4, 1, 1), s.tensor(2, 1 << 20, 4, 3)
    result = s.tensor(3, 3 << 20, 4, 1, 1, op=ADD_ID, sources=(1, 2, 5))
    return setting + talk.graph([values, table, ids, result], (3,))


def _ssm_scan(s: Stage, sequence: int) -> bytes:
    """A state space model of one head with four states."""
    ids, setting = _numbers(s, I32, sequence)
    state, x, dt, a = s.tensor(1, 0, 4, 1, 1, 1), s.tensor(2, 64, 1), s.tensor(3, 128, 1), s.tensor(4, 192, 1)
    b, c = s.tensor(6, 256, 4), s.tensor(7, 320, 4)
    result = s.tensor(8, 3 << 20, 5, op=SSM_SCAN, sources=(1, 2, 3, 4, 6, 7, 5), param=1)
    return setting + talk.graph([state, x, dt, a, b, c, ids, result], (8,))


def _recomputed(make: Callable[[Stage, int], bytes], kind: int) -> Make:
    """A graph that is right, then another index in its tensor, then the same graph again."""

    def both(s: Stage) -> bytes:
        return make(s, 0) + _numbers(s, kind, 1 << 20)[1] + talk.recompute()

    return both


INDICES: Mapping[str, Case] = {
    **{
        f"{name} {index}": Case(FAILED, lambda s, make=make, index=index: make(s, index))  # type: ignore[misc]
        for name, make in (
            ("get_rows", _get_rows),
            ("set_rows", _set_rows),
            ("mul_mat_id", _mul_mat_id),
            ("add_id", _add_id),
            ("ssm_scan", _ssm_scan),
        )
        for index in (-1, 3, (1 << 31) - 1)
    },
    "get_rows recomputed": Case(FAILED, _recomputed(_get_rows, I32)),
    "set_rows recomputed": Case(FAILED, _recomputed(_set_rows, I64)),
    "mul_mat_id recomputed": Case(FAILED, _recomputed(_mul_mat_id, I32)),
}
