"""Targets on a proven link: frames, the session behind them, and control messages."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from meshd.base.errors import Closed, RemoteProtocolError
from meshd.mux.config import Priority
from meshd.mux.events import DataReceived, StreamOpened
from meshd.mux.session import Session
from meshd.wire import capacity, hello, lease, models, news
from meshd.wire.frame import (
    Ack,
    Control,
    FrameParser,
    Goodbye,
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
from meshd.wire.message import LengthParser, framed
from meshd.wire.models import GONE, HERE, PieceInbox, PieceRequests, piece_request
from meshd.wire.versions import NativeVersion

from tests.fuzz.mutate import either, flip
from tests.fuzz.target import Target
from tests.unit.mux.script import SESSION_ID, quiet

FIRST = encode(Resume(16 << 20, 1, 0, ()))  # of a follower that has opened nothing yet
AGAIN = encode(
    Resume(16 << 20, 3, 2, (ResumeEntry(0, 10, 300_000, 0, True), ResumeEntry(1, 0, 300_000, 300)))
)
CONTROL: tuple[Control, ...] = (
    Open(1, "rpc", {"lease": b"0123456789abcdef", "n": 7, "why": "x"}, 1, 256 << 10),
    Ack(1, 100, 400_000, True),
    MaxData(32 << 20),
    LinkAck(5000),
    Ping(1, 20),
    Pong(1, 20),
    Switch(1),
    LinkLost(1),
    Reset(1, 2, "gone", 100, 100),
    ResetAck(1),
    Goodbye(1, "bye"),
)
OF_PEER = (
    encode(CONTROL[0]),
    data_header(1, 0, 300, False) + bytes(300),
    data_header(1, 300, 20, True) + bytes(20),
    encode(Ack(0, 40, 400_000, True)),
    data_header(0, 0, 10, True) + bytes(10),
    encode(LinkAck(20)),
    encode(Ping(1, 20)),
)
EACH = (*map(encode, CONTROL), *OF_PEER, encode_hello(b"{}"))


def _make_frames(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Some frames in any order, one of them broken."""
    row = [rng.choice(samples) for _ in range(rng.randint(1, 6))]
    at = rng.randrange(len(row))
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)


def _feed_frames(data: bytes) -> None:
    parser = FrameParser()
    cut = len(data) // 3
    for part in (data[:cut], data[cut : cut + 1], data[cut + 1 :]):
        parser.feed(part)


def _whole_talk() -> bytes:
    first = FIRST + b"".join(OF_PEER)
    return len(first).to_bytes(4, "big") + first + AGAIN


def _make_talk(rng: random.Random, _samples: Sequence[bytes]) -> bytes:
    """Two links of a session: as an honest peer begins, then anything. The first one's length goes before."""
    first = FIRST + b"".join(OF_PEER[: rng.randrange(len(OF_PEER) + 1)])
    if rng.random() < 0.6:
        first += _make_frames(rng, EACH)
    again = AGAIN if rng.random() < 0.5 else flip(rng, AGAIN, EACH)
    if rng.random() < 0.5:
        again += _make_frames(rng, EACH)
    return len(first).to_bytes(4, "big") + first + again


def _feed_session(data: bytes) -> None:
    session = Session(side="leader", session_id=SESSION_ID, config=quiet())
    session.write(session.open("echo", {}, Priority.INTERACTIVE), bytes(100))
    end = 4 + int.from_bytes(data[:4], "big")
    for link, part in enumerate((data[4:end], data[end:]), 1):
        now = float(link)
        session.link_up(link, now)
        session.transmit(link, now, 1 << 20)
        for event in session.receive(link, part, now):
            if isinstance(event, StreamOpened):
                session.accept(event.stream_id)
            elif isinstance(event, DataReceived):
                session.consumed(event.stream_id, len(event.data))
        session.transmit(link, now, 1 << 20)
        session.link_down(link, now)


def _feed_lengths(data: bytes) -> None:
    parser = LengthParser(limit=4096)
    for at in range(0, len(data), 100):
        parser.feed(data[at : at + 100])
        for message in parser.messages():
            assert len(message) <= 4096


class _Message(Protocol):
    def encode(self) -> bytes: ...


def _messages(*messages: _Message) -> tuple[bytes, ...]:
    return tuple(message.encode() for message in messages)


def _make_message(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return either(rng, rng.choice(samples), samples)


def _reader(decode: Callable[[bytes], _Message | None]) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        message = decode(data)
        if message is not None:
            assert decode(message.encode()) == message

    return feed


_NATIVE = NativeVersion("5.0.0", "b1234", "ab" * 32, "cpu")
_HELLO = hello.Hello(
    version=1,
    software="0.1.0",
    features=("a", "b"),
    name="garage",
    role="worker",
    incarnation=bytes(16),
    current=b"",
    fresh=bytes(8),
    chosen=b"",
    native=_NATIVE,
    largest_frame=256 << 10,
    grace=120,
    bans_count=2,
    bans_digest=bytes(32),
    clock=1_790_000_000,
    record=b"record" * 50,
)
_REQUESTS = b"r"  # before an input that is one side's words of two
_MODEL = models.ToldModel(
    bytes(16), ("GLM-Q4", "hf:a/GLM-GGUF:Q4"), 1 << 34, 2, "Q4", "glm", bytes(32), bytes(32)
)
_DEVICE = lease.OfferedDevice("CPU", "cpu", "a processor", 1 << 33, 1 << 34)


def _feed_pieces(data: bytes) -> None:
    """As a giver reads requests, or as a puller reads pieces of nine bytes; in two chunks."""
    half = 1 + len(data) // 2
    chunks = [chunk for chunk in (data[1:half], data[half:]) if chunk]
    if data[:1] == _REQUESTS:
        requests = PieceRequests(7)
        for chunk in chunks:
            requests.feed(chunk)
            while (wanted := requests.next()) is not None:
                assert 0 <= wanted < 7
        return
    inbox = PieceInbox()
    for number in range(4):
        inbox.expect(number, 9)
    for chunk in chunks:
        assert all(len(piece) == 9 for _, piece in inbox.feed(chunk))


def _target(name: str, samples: tuple[bytes, ...], feed: Callable[[bytes], None], share: int) -> Target:
    return Target(
        name=name, samples=samples, make=_make_message, feed=feed, allowed=(RemoteProtocolError,), share=share
    )


TARGETS = (
    Target(
        name="frames",
        samples=(*EACH, FIRST, AGAIN),
        make=_make_frames,
        feed=_feed_frames,
        allowed=(RemoteProtocolError,),
        share=14,
    ),
    Target(
        name="session",
        samples=(_whole_talk(),),
        make=_make_talk,
        feed=_feed_session,
        allowed=(RemoteProtocolError, Closed),  # closed: a goodbye on the first link, then the second
        share=10,
    ),
    Target(
        name="lengths",
        samples=(framed(b"x" * 100), framed(b""), framed(b"y" * 4096)),
        make=_make_frames,
        feed=_feed_lengths,
        allowed=(RemoteProtocolError,),
        share=3,
    ),
    _target(
        "hello",
        _messages(
            _HELLO, hello.Bans((b"ban" * 90,) * 3, True), hello.Go(), hello.Refusal("busy", "no", "wait")
        ),
        _reader(hello.decode),
        8,
    ),
    _target(
        "joining",
        _messages(
            hello.JoinRequest("garage", "worker"),
            hello.Welcome(b"chain" * 60, (b"record" * 60,) * 2, (b"ban" * 90,)),
            hello.NotAdmitted("used_up", "all uses are gone", "ask for another"),
        ),
        _reader(hello.decode_joining),
        4,
    ),
    _target(
        "lease",
        _messages(
            lease.Acquire(bytes(16), "model", "f" * 64, "b1234"),
            lease.WorkerOffer((_DEVICE, _DEVICE), True, "m" * 32, bytes(16)),
            lease.Acquire(bytes(16), "model", "f" * 64, "b1234", protocol="mesh 2"),
            lease.Admit(bytes(32), 3),
            lease.Introduced(),
            lease.Neighbour(7, bytes(32), bytes(16), 1, True, True),
            lease.Reached(7, "no way"),
            lease.Reached(7, "", direct=True),
            lease.Reserve((1 << 30, 0)),
            lease.Grant(bytes(16), compressed=1),
            lease.Progress("hashing"),
            lease.Lost("gone", "the server ended", ""),
        ),
        _reader(lease.decode),
        6,
    ),
    _target(
        "capacity",
        _messages(
            capacity.AskCapacity(("30=mul_mat:q4_1:576:1536,rms_norm:576",), measure=True),
            capacity.AskCapacity(recent=True, lease=bytes(16), spans=((9, 5), (5, 0)), marks=bytes(16)),
            capacity.Measuring("CPU"),
            capacity.Capacity(
                (capacity.MeasuredDevice(_DEVICE, (capacity.TimedLayer(0, 1, 190_656),)),),
                "m" * 32,
                (capacity.MeasuredPath(bytes(32), 850, 0),),
                lacks=b"\x03",
                sealable=b"\x01",
                wireless=b"\x01",
            ),
        ),
        _reader(capacity.decode),
        3,
    ),
    _target(
        "models",
        _messages(
            models.AskModels(),
            models.AskPieces(bytes(16)),
            models.AskTensors(bytes(16)),
            models.ModelsTold((_MODEL, _MODEL), last=False),
            models.ModelsTold((_MODEL,), disk=models.ToldDisk(300_000_000_000, 20_000_000_000)),
            models.ReadingModel("reading it once: 10 %"),
            models.PiecesTold((98_362_432, 5)),
            models.PieceHashes(bytes(range(64))),
            models.TensorHashes(bytes(range(64))),
            models.NoPieces("it is gone"),
        ),
        _reader(models.decode),
        4,
    ),
    _target(
        "serving",
        _messages(
            models.ServingTold((models.ApiModel("glm", "ready", True, "loaded", 2, 4, bytes(32)),)),
            models.ServingTold(
                (models.ApiModel("tiny", "failed", False, "no memory", aliases=("a", "b")),), asks_key=True
            ),
        ),
        _reader(models.decode_serving),
        3,
    ),
    Target(
        name="pieces",
        samples=(
            b"p" + HERE + b"a" * 9 + HERE + b"b" * 9 + GONE,
            _REQUESTS + piece_request(0) + piece_request(6),
        ),
        make=_make_frames,
        feed=_feed_pieces,
        allowed=(RemoteProtocolError,),
        share=3,
    ),
    _target(
        "news",
        _messages(
            news.RecordNews(b"record" * 60),
            news.BanNews(b"ban" * 90),
            news.PresenceNews((b"p" * 108,) * 3),
            news.AwayNews(b"a" * 140),
            news.DigestNews(b"d" * 16),
            news.BucketsNews((b"8 bytes!",) * 256),
        ),
        _reader(news.decode),
        3,
    ),
)
