"""Test that what a node says of its devices is hostile until read: numbers, names, words of a program."""

from dataclasses import replace

import msgpack
import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.capacity import (
    MAX_NANOSECONDS,
    MAX_TIMED_TOKENS,
    AskCapacity,
    Capacity,
    ComputedSpan,
    MeasuredDevice,
    MeasuredPath,
    TimedLayer,
    checked_time,
    decode,
)
from meshd.wire.lease import OfferedDevice
from meshd.wire.limits import MAX_TIMED

CPU = OfferedDevice("CPU", "cpu", "some processor", 1 << 30, 1 << 31)
GPU = OfferedDevice("GPU0", "gpu", "some card", 1 << 30, 1 << 31, "c" * 32)
FULL = Capacity(
    (MeasuredDevice(CPU, (TimedLayer(0, 1, 9),)), MeasuredDevice(GPU)), "m", (MeasuredPath(bytes(32), 5, 6),)
)


def changed(**fields: object) -> bytes:
    made: bytes = msgpack.packb({**msgpack.unpackb(FULL.encode()), **fields})
    return made


def test_it_is_read_as_it_was_said() -> None:
    assert decode(FULL.encode()) == FULL
    part = replace(FULL, cpu_share=250, computed=(ComputedSpan(5, 6), ComputedSpan(0, 0)), core_set="0f" * 8)
    assert decode(part.encode()) == part
    asked = AskCapacity(recent=True, lease=bytes(16), spans=((9, 5), (5, 0)), marks=bytes(16))
    assert decode(replace(part, lacks=b"\x03").encode()) == replace(part, lacks=b"\x03")
    assert decode(replace(part, sealable=b"\x01").encode()) == replace(part, sealable=b"\x01")
    assert decode(replace(part, wireless=b"\x01").encode()) == replace(part, wireless=b"\x01")
    assert decode(asked.encode()) == asked


def test_an_earlier_version_neither_asks_for_spans_nor_tells_them() -> None:
    said = msgpack.unpackb(FULL.encode())
    del said["computed"], said["core_set"], said["sealable"], said["wireless"]
    assert decode(msgpack.packb(said)) == FULL
    asked = msgpack.unpackb(AskCapacity().encode())
    del asked["spans"]
    assert decode(msgpack.packb(asked)) == AskCapacity()


def test_a_span_begins_before_it_ends() -> None:
    with pytest.raises(RemoteProtocolError, match="spans that begin before they end"):
        decode(msgpack.packb({"type": "ask", "timed": [], "spans": [[1, 2]]}))


@pytest.mark.parametrize(
    "text", ["--fd", "1=rms_norm:64 --fd", "=rms_norm:64", "1=", "1=A", "100=rms_norm:64", "1=rms_norm:64\n"]
)
def test_what_becomes_an_argument_is_a_layer_or_nothing(text: str) -> None:
    asked: bytes = msgpack.packb({"type": "ask", "timed": [text]})
    with pytest.raises(RemoteProtocolError, match="timed"):
        decode(asked)
    assert decode(AskCapacity(("1=rms_norm:64",)).encode()) == AskCapacity(("1=rms_norm:64",))


def test_there_is_one_list_of_times_for_each_device() -> None:
    wrong: list[dict[str, object]] = [{"times": [[]]}, {"cards": ["a"]}, {"times": [[], [], []]}]
    for fields in wrong:
        with pytest.raises(RemoteProtocolError, match="an entry for each device"):
            decode(changed(**fields))
    with pytest.raises(RemoteProtocolError, match="one time for each number of tokens"):
        decode(changed(times=[[[0, 1, 1], [1, 1, 1], [0, 1, 2]], []]))
    assert isinstance(decode(changed(times=[[[0, 1, 1], [1, 1, 1], [0, 2, 2]], [[0, 1, 1]]])), Capacity)
    row = msgpack.unpackb(FULL.encode())["devices"][0]
    with pytest.raises(RemoteProtocolError, match="twice"):
        decode(changed(devices=[row, row]))


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ((0, 1, 1), True),
        ((MAX_TIMED - 1, MAX_TIMED_TOKENS, MAX_NANOSECONDS), True),
        ((-1, 1, 1), False),
        ((MAX_TIMED, 1, 1), False),
        ((0, 0, 1), False),
        ((0, MAX_TIMED_TOKENS + 1, 1), False),
        ((0, 1, 0), False),
        ((0, 1, MAX_NANOSECONDS + 1), False),
    ],
)
def test_a_time_that_cannot_be_told_is_left_out(values: tuple[int, int, int], fits: bool) -> None:
    assert checked_time(*values) == (TimedLayer(*values) if fits else None)
