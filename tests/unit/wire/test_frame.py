"""Frames: what is encoded comes out again, however the bytes are cut; limits hold; nothing else is raised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.frame import (
    MAX_OFFSET,
    Ack,
    Control,
    Data,
    Frame,
    FrameParser,
    Goodbye,
    HelloFrame,
    LinkAck,
    LinkLost,
    MaxData,
    Open,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
    data_header,
    encode,
    encode_hello,
)

IDS = st.integers(0, (1 << 32) - 1)
OFFSETS = st.integers(0, MAX_OFFSET)
TEXTS = st.text(st.characters(categories=("L", "N", "P")), max_size=40)
ENTRIES = st.builds(
    ResumeEntry,
    stream_id=IDS,
    received=OFFSETS,
    credit=OFFSETS,
    sent=OFFSETS,
    accepted=st.booleans(),
    ended=st.booleans(),
    eof=st.booleans(),
    resetting=st.booleans(),
)
METADATA = st.dictionaries(
    st.text(min_size=1, max_size=8),
    TEXTS | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=20),
    max_size=5,
)
CONTROL: st.SearchStrategy[Control] = st.one_of(
    st.builds(HelloFrame, st.binary(max_size=300)),
    st.builds(Resume, OFFSETS, IDS, IDS, st.lists(ENTRIES, max_size=5).map(tuple)),
    st.builds(
        Open,
        IDS,
        TEXTS.filter(lambda text: 0 < len(text.encode()) <= 64),
        METADATA,
        st.integers(0, 1),
        OFFSETS,
    ),
    st.builds(Ack, IDS, OFFSETS, OFFSETS, st.booleans(), st.booleans()),
    st.builds(Reset, IDS, IDS, TEXTS, OFFSETS, OFFSETS),
    st.builds(ResetAck, IDS),
    st.builds(MaxData, OFFSETS),
    st.builds(LinkAck, st.integers(0, (1 << 64) - 1)),
    st.builds(Ping, IDS, IDS, st.booleans()),
    st.builds(Pong, IDS, IDS),
    st.builds(Switch, IDS),
    st.builds(LinkLost, IDS),
    st.builds(Goodbye, IDS, TEXTS),
)
DATA = st.builds(
    Data, IDS, st.integers(0, 1 << 40), st.binary(min_size=1, max_size=400), st.booleans()
) | st.builds(Data, IDS, OFFSETS, st.just(b""), st.just(True))


def encoded(frame: Frame) -> bytes:
    """Any frame as bytes."""
    if isinstance(frame, Data):
        return data_header(frame.stream_id, frame.offset, len(frame.payload), frame.fin) + frame.payload
    return encode(frame)


def joined(frames: list[Frame]) -> list[Frame]:
    """Pieces of one Data frame put together again (they follow one another and only the last can end)."""
    whole: list[Frame] = []
    for frame in frames:
        last = whole[-1] if whole else None
        if (
            isinstance(frame, Data)
            and isinstance(last, Data)
            and not last.fin
            and (last.stream_id, last.offset + len(last.payload)) == (frame.stream_id, frame.offset)
        ):
            whole[-1] = Data(frame.stream_id, last.offset, bytes(last.payload) + frame.payload, frame.fin)
        else:
            whole.append(
                Data(frame.stream_id, frame.offset, bytes(frame.payload), frame.fin)
                if isinstance(frame, Data)
                else frame
            )
    return whole


@given(st.lists(CONTROL | DATA, max_size=6), st.lists(st.integers(1, 60), max_size=40))
def test_what_goes_in_comes_out_however_it_is_cut(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, frames))
    parser = FrameParser()
    parsed: list[Frame] = []
    for cut in cuts:
        parsed += parser.feed(stream[:cut])
        stream = stream[cut:]
    parsed += parser.feed(stream)
    assert joined(parsed) == joined(frames)


@given(st.lists(CONTROL | DATA, max_size=6), st.lists(st.integers(1, 60), max_size=40))
def test_of_a_buffer_that_is_used_again_only_payload_is_shown(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encoded, frames))
    parser = FrameParser()
    parsed: list[Frame] = []
    for cut in [*cuts, len(stream)]:
        buffer = bytearray(stream[:cut])
        stream = stream[cut:]
        parsed += map(owned, parser.feed(memoryview(buffer).toreadonly()))
        buffer[:] = bytes(len(buffer))
    assert joined(parsed) == joined(frames)


def owned(frame: Frame) -> Frame:
    if isinstance(frame, Data):
        frame.payload = bytes(frame.payload)
    return frame


@given(CONTROL | DATA)
def test_every_frame_byte_by_byte(frame: Frame) -> None:
    parser = FrameParser()
    parsed: list[Frame] = []
    for byte in encoded(frame):
        parsed += parser.feed(bytes([byte]))
    assert joined(parsed) == joined([frame])


def test_payload_is_handed_on_before_its_frame_is_complete() -> None:
    parser = FrameParser()
    assert parser.feed(data_header(2, 100, 6, True) + b"abc") == [Data(2, 100, b"abc")]
    assert parser.feed(b"def") == [Data(2, 103, b"def", fin=True)]


def test_a_small_piece_does_not_keep_a_large_chunk_alive() -> None:
    chunk = data_header(0, 0, 10, False) + bytes(10) + encode(HelloFrame(bytes(1000)))
    piece = FrameParser().feed(chunk)[0]
    assert isinstance(piece, Data)
    assert isinstance(piece.payload, bytes)


def test_most_of_a_chunk_is_not_copied() -> None:
    chunk = data_header(0, 0, 1000, False) + bytes(1000)
    piece = FrameParser().feed(chunk)[0]
    assert isinstance(piece, Data)
    assert isinstance(piece.payload, memoryview)
    assert piece.payload.obj is chunk


def test_an_unknown_frame_is_skipped_if_it_may_be() -> None:
    unknown = b"\x40" + (5).to_bytes(4, "big") + b"12345"
    stream = unknown + encode(ResetAck(7)) + unknown
    whole = FrameParser().feed(stream)
    parser = FrameParser()
    single = [frame for byte in stream for frame in parser.feed(bytes([byte]))]
    assert whole == single == [ResetAck(7)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"\xc0" + bytes(4), id="unknown and critical"),
        pytest.param(b"\x40" + (1 << 20).to_bytes(4, "big"), id="unknown and too long"),
        pytest.param(b"\x87" + (5).to_bytes(4, "big"), id="a fixed frame too long"),
        pytest.param(b"\x87" + (3).to_bytes(4, "big") + bytes(3), id="a fixed frame too short"),
        pytest.param(b"\x82" + (1 << 24).to_bytes(4, "big"), id="resume too long"),
        pytest.param(b"\x82" + (17).to_bytes(4, "big") + bytes(17), id="resume of part of a stream"),
        pytest.param(data_header(0, 0, 256 << 10 | 1, False), id="data too long"),
        pytest.param(data_header(0, 0, 0, False), id="data without data"),
        pytest.param(data_header(0, MAX_OFFSET, 1, False), id="data beyond every offset"),
        pytest.param(b"\x84" + (12).to_bytes(4, "big") + bytes(13), id="data shorter than its head"),
        pytest.param(encode(MaxData(0))[:5] + b"\xff" * 8, id="credit beyond every offset"),
        pytest.param(
            encode(Open(0, "s", {}, 0, 0)).replace(b"\0" * 13, b"\0\0\0\0\7" + b"\0" * 8), id="priority"
        ),
        pytest.param(encode(Goodbye(1, "ab"))[:-2] + b"\xff\xff", id="text that is not text"),
        pytest.param(encode(Goodbye(1, "ab"))[:-2] + b"\x1b[", id="text with control characters"),
    ],
)
def test_what_breaks_the_rules_is_refused(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameParser().feed(bad)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_raise_nothing_else(data: bytes, step: int) -> None:
    parser = FrameParser()
    try:
        for at in range(0, len(data), step):
            parser.feed(data[at : at + step])
    except RemoteProtocolError:
        pass


@given(CONTROL | DATA, st.data())
def test_a_good_frame_spoiled_raises_nothing_else(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encoded(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        FrameParser().feed(bytes(raw))
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "frame",
    [
        Open(0, "", {}, 0, 0),
        Open(0, "s" * 65, {}, 0, 0),
        Open(0, "s", {"key": "x" * 5000}, 0, 0),
        Open(0, "s", {str(n): n for n in range(33)}, 0, 0),
        Open(0, "s", {"n": 1 << 70}, 0, 0),
        Open(0, "s\n", {}, 0, 0),
    ],
)
def test_what_the_peer_would_not_take_is_not_sent(frame: Open) -> None:
    with pytest.raises(LocalProtocolError):
        encode(frame)


def test_a_reason_is_cut_and_cleaned_and_never_refused() -> None:
    (frame,) = FrameParser().feed(encode(Goodbye(1, "é" * 2000 + "\x1b")))
    assert frame == Goodbye(1, "é" * 512)
    (frame,) = FrameParser().feed(encode(Goodbye(1, "a\x1b\nb")))
    assert frame == Goodbye(1, "a??b")


def test_a_hello_is_bounded() -> None:
    with pytest.raises(LocalProtocolError):
        encode_hello(bytes((64 << 10) + 1))


# The short cut for what nearly every read of a link is.

WHOLE = data_header(3, 40, 5, False) + b"hello"
ACKED: list[Frame] = [LinkAck(7), Ack(3, 10, 20, False, False), Ack(5, 1, 2, True, False)]


def fresh(*fed: bytes, **limits: int) -> FrameParser:
    parser = FrameParser(**limits)
    for data in fed:
        parser.feed(data)
    return parser


@pytest.mark.parametrize(
    ("data", "at", "found"),
    [
        (WHOLE, 0, (3, 40)),
        (memoryview(b"xx" + WHOLE), 2, (3, 40)),
        (WHOLE, 1, None),
        (WHOLE[:-1], 0, None),
        (WHOLE + b"x", 0, None),
        (data_header(3, 40, 1, False), 0, None),
        (data_header(3, 40, 0, True), 0, None),
        (data_header(3, 40, 5, True) + b"hello", 0, None),
        (encode(MaxData(9)), 0, None),
        (encode(HelloFrame(bytes(30))), 0, None),
        (data_header(3, MAX_OFFSET - 5, 5, False) + b"hello", 0, (3, MAX_OFFSET - 5)),
        (data_header(3, MAX_OFFSET - 4, 5, False) + b"hello", 0, None),
        (b"", 0, None),
    ],
)
def test_one_whole_frame_of_data_is_seen_at_once(
    data: bytes | memoryview, at: int, found: tuple[int, int] | None
) -> None:
    assert FrameParser().whole(data, at) == found


def test_a_frame_of_data_is_whole_up_to_its_limit_and_at_the_beginning_of_a_frame() -> None:
    assert fresh(max_frame=5).whole(WHOLE) == (3, 40)
    assert fresh(max_frame=4).whole(WHOLE) is None
    assert fresh(WHOLE).whole(WHOLE) == (3, 40)
    assert fresh(WHOLE[:3]).whole(WHOLE) is None
    assert fresh(WHOLE[:-1]).whole(WHOLE) is None
    assert fresh(b"\x40" + (50).to_bytes(4, "big") + b"123").whole(WHOLE) is None


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_acknowledgements_before_data_are_read_in_one_go(count: int) -> None:
    before = b"".join(map(encoded, ACKED[:count]))
    for data in (before + WHOLE, before + WHOLE[:-1], before + data_header(3, 1, 9, False)):
        assert FrameParser().acks_before_data(data) == (ACKED[:count], len(before))
    assert FrameParser().acks_before_data(before) is None, "no data"
    assert FrameParser().acks_before_data(before + WHOLE[:10]) is None, "its head is not whole"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"".join(map(encoded, [*ACKED, ACKED[0]])), id="too many"),
        pytest.param(encode(Ping(1, 2, False)), id="something else"),
        pytest.param(encode(ACKED[1])[:-4], id="one that is cut"),  # type: ignore[arg-type]
        pytest.param(b"\x8b" + (500).to_bytes(4, "big"), id="one that is longer than what has come"),
    ],
)
def test_anything_else_before_data_is_left_to_the_parser(before: bytes) -> None:
    assert FrameParser().acks_before_data(before + WHOLE) is None


def test_in_the_middle_of_a_frame_nothing_is_read_in_one_go() -> None:
    data = encoded(ACKED[0]) + WHOLE
    assert fresh(data).acks_before_data(data) is not None
    for held in (WHOLE[:3], WHOLE[:-1], b"\x40" + (50).to_bytes(4, "big") + b"123"):
        assert fresh(held).acks_before_data(data) is None
