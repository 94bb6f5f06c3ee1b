"""Devices that cannot be do not reach llama-server."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import PeerId
from meshd.rpc import protocol as rpc
from meshd.rpc.device_check import MOST_ALIGNMENT, DeviceCheck
from meshd.rpc.head_timeouts import HeadTimeouts

from tests.unit.rpc import talk

HELLO = talk.hello_answer(talk.caps(rpc.FEATURE_INFO))
WITHOUT = talk.hello_answer(talk.caps(rpc.FEATURE_LOAD))


def device(alignment: int) -> bytes:
    return struct.pack("<QQQQQ", alignment, 1 << 40, 1 << 30, 1 << 32, 1)


def passed(*parts: bytes) -> bytes:
    check = DeviceCheck()
    return b"".join(bytes(check.to_peer(part)) for part in parts)


@pytest.mark.parametrize("alignment", [1, 16, 4096, MOST_ALIGNMENT])
def test_devices_pass(alignment: int) -> None:
    said = HELLO + talk.answer(device(32) + device(alignment)) + talk.answer(b"more")
    assert passed(said) == said
    assert passed(*(said[at : at + 1] for at in range(len(said)))) == said


@pytest.mark.parametrize("alignment", [0, 3, 48, 2 * MOST_ALIGNMENT, (1 << 64) - 1])
def test_an_alignment_that_is_none_is_refused(alignment: int) -> None:
    check = DeviceCheck()
    assert check.to_peer(HELLO) == HELLO
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=f"an alignment of {alignment} bytes"):
            check.to_peer(talk.answer(device(32) + device(alignment)))


@pytest.mark.parametrize("size", [39, 41, rpc.DEVICE_INFO_BYTES * (rpc.MAX_INFO_DEVICES + 1), 1 << 63])
def test_a_table_of_another_size_is_refused(size: int) -> None:
    check = DeviceCheck()
    check.to_peer(HELLO)
    with pytest.raises(RemoteProtocolError, match=f"a table of devices of {size} bytes"):
        check.to_peer(rpc.ANSWER.pack(size))


@pytest.mark.parametrize("first", [WITHOUT, talk.answer(bytes(16)), talk.answer(b"")])
def test_without_a_table_nothing_is_held_back(first: bytes) -> None:
    said = (first, talk.answer(device(3)), b"\xff" * 100)
    assert passed(*said) == b"".join(said)


def test_a_head_asks_it() -> None:
    timeouts = HeadTimeouts(lambda: 0.0, largest=1)
    with timeouts.patience(PeerId(bytes(32))).connection() as end:
        end.from_peer(HELLO)
        with pytest.raises(RemoteProtocolError, match="alignment"):
            end.from_peer(talk.answer(device(3)))


@given(st.lists(st.binary(max_size=60)), st.booleans())
def test_any_bytes_pass_or_are_refused(parts: list[bytes], greeted: bool) -> None:
    check, said, got = DeviceCheck(), b"", b""
    try:
        for part in ([HELLO] if greeted else []) + parts:
            said += part
            got += bytes(check.to_peer(part))
    except RemoteProtocolError:
        pass
    assert said.startswith(got)
