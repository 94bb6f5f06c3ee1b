"""Questions to a plain rpc-server and its answers, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import probe
from meshd.wire.limits import MAX_DEVICES


def test_requests_are_command_size_payload() -> None:
    assert probe.hello() == b"\x0e" + (24).to_bytes(8, "little") + bytes(24)
    assert probe.device_count() == b"\x0f" + bytes(8)
    assert probe.device_memory(3) == b"\x0b" + (4).to_bytes(8, "little") + b"\x03\0\0\0"


def test_answers_are_read() -> None:
    assert probe.read_hello(bytes([7, 1, 2, 0])) == (7, 1, 2)
    assert probe.read_hello(bytes([7, 1, 2, 0]) + bytes(24)) == (7, 1, 2)
    assert probe.read_count((2).to_bytes(4, "little")) == 2
    assert probe.read_memory((5).to_bytes(8, "little") + (9).to_bytes(8, "little")) == (5, 9)


@pytest.mark.parametrize("count", [0, MAX_DEVICES + 1, 0xFFFFFFFF])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{count} devices"):
        probe.read_count(count.to_bytes(4, "little"))


@pytest.mark.parametrize(("free", "total"), [(1 << 60, 1), (1, 1 << 60), ((1 << 64) - 1, 0)])
def test_more_memory_than_there_can_be_is_refused(free: int, total: int) -> None:
    with pytest.raises(RemoteProtocolError, match="impossible amount of memory"):
        probe.read_memory(free.to_bytes(8, "little") + total.to_bytes(8, "little"))


@pytest.mark.parametrize("read", [probe.read_hello, probe.read_count, probe.read_memory])
@given(answer=st.binary(max_size=40))
def test_any_answer_is_read_or_refused(read: object, answer: bytes) -> None:
    try:
        read(answer)  # type: ignore[operator]
    except RemoteProtocolError as error:
        assert error.what
