"""SCTP packets: ours read by aiortc and aiortc's by us, and nothing hostile gets further than an error."""

import pytest
from aiortc.rtcsctptransport import DataChunk, SackChunk, parse_packet, serialize_packet
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.link.webrtc import sctp as wire

NUMBERS = st.integers(0, wire.TSNS - 1)


@given(NUMBERS, NUMBERS, st.integers(0, 65535), st.binary(min_size=1, max_size=1300))
def test_aiortc_reads_our_data(tag: int, tsn: int, sequence: int, payload: bytes) -> None:
    packet = wire.seal(tag, wire.data_chunk(tsn, sequence, wire.BINARY, payload))
    _, _, read_tag, (chunk,) = parse_packet(packet)
    assert isinstance(chunk, DataChunk)
    assert (read_tag, chunk.tsn, chunk.stream_seq, chunk.protocol, chunk.user_data, chunk.flags) == (
        tag,
        tsn,
        sequence,
        wire.BINARY,
        payload,
        wire.WHOLE,
    )


@given(NUMBERS, NUMBERS, st.lists(st.integers(1, 60), max_size=600))
def test_aiortc_reads_our_acknowledgements(cumulative: int, window: int, steps: list[int]) -> None:
    gaps, at = [], 0
    for step in steps:
        gaps.append((at + 1 + step, at + 2 + step))
        at += 2 + step
    _, _, _, (chunk,) = parse_packet(wire.seal(1, wire.sack_chunk(cumulative, window, gaps)))
    assert isinstance(chunk, SackChunk)
    assert chunk.gaps == gaps[: wire.MAX_GAPS]
    assert (chunk.cumulative_tsn, chunk.advertised_rwnd) == (cumulative, window)


def test_the_longest_acknowledgement_fits_a_record() -> None:
    gaps = [(at, at) for at in range(2, 4000, 2)]
    assert len(wire.seal(1, wire.sack_chunk(0, 0, gaps))) < 1100


@given(NUMBERS, st.binary(min_size=1, max_size=100))
def test_we_read_aiortc(tsn: int, payload: bytes) -> None:
    data = DataChunk(flags=3)
    data.tsn, data.user_data, data.protocol = tsn, payload, wire.BINARY
    sack = SackChunk()
    sack.cumulative_tsn, sack.advertised_rwnd, sack.gaps = tsn, 77, [(2, 3), (9, 9)]
    sack.duplicates = [tsn]
    tag, ((kind, _, body),) = wire.open_packet(serialize_packet(wire.SCTP_PORT, wire.SCTP_PORT, 9, data))
    assert (tag, kind, wire.open_data(body)) == (9, wire.DATA, (tsn, wire.BINARY, payload))
    _, ((kind, _, body),) = wire.open_packet(serialize_packet(wire.SCTP_PORT, wire.SCTP_PORT, 9, sack))
    assert kind == wire.SACK
    assert wire.open_sack(body) == wire.SackBody(tsn, 77, ((2, 3), (9, 9)))


def test_a_flipped_bit_is_seen() -> None:
    packet = bytearray(wire.seal(1, wire.data_chunk(1, 1, wire.BINARY, b"hello")))
    packet[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum"):
        wire.open_packet(bytes(packet))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(11),
        bytes(8) + b"\x00\x02\x00\x00" + b"\x00\x02\x00\x03",  # a gap is missing
        bytes(8) + b"\x00\x02\x00\x00" + b"\x00\x02\x00\x05\x00\x04\x00\x06",  # they overlap
        bytes(8) + b"\x00\x01\x00\x00" + b"\x00\x05\x00\x04",  # it ends before it begins
        bytes(8) + b"\x00\x01\x00\x00" + b"\x00\x01\x00\x04",  # no gap before it
    ],
)
def test_a_wrong_acknowledgement(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.open_sack(body)


def test_numbers_on_a_circle() -> None:
    assert wire.ahead(2, of=wire.TSNS - 1) == 3
    assert wire.ahead(wire.TSNS - 1, of=2) == -3
    assert wire.ahead(5, of=5) == 0


@given(st.integers(20, 375).map(lambda quarter: 4 * quarter))
def test_a_probe_has_its_size_and_its_answer_tells_it(size: int) -> None:
    token = bytes(range(8))
    packet = wire.seal(5, wire.probe_chunk(size, token))
    assert len(packet) == size
    _, ((kind, _, body),) = wire.open_packet(packet)
    assert kind == wire.HEARTBEAT
    assert wire.are_parameters(body)
    _, ((kind, _, answer),) = wire.open_packet(wire.seal(5, wire.heartbeat_ack(body)))
    assert (kind, wire.probed(answer, token), wire.probed(answer, bytes(8))) == (wire.HEARTBEAT_ACK, size, 0)
    _, _, _, (chunk,) = parse_packet(packet)
    assert bytes(chunk) == packet[12:]


@given(st.binary(max_size=40))
def test_parameters_without_a_length_are_refused(junk: bytes) -> None:
    assert wire.are_parameters(b"\x00\x01\x00\x05\x09\x00\x00\x00" * 3)
    assert not wire.are_parameters(b"\x00\x01\x00\x05\x09\x00\x00\x00" + b"\x00\x01\x00\x00" + junk)
    wire.are_parameters(junk)
