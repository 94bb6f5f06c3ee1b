"""Greeting, joining, lease, capacity, models, news: which fields are needed, which values are refused."""

from collections.abc import Callable, Mapping

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire import capacity, hello, lease, models, news
from meshd.wire.capacity import (
    AskCapacity,
    Capacity,
    ComputedSpan,
    MeasuredDevice,
    MeasuredPath,
    Measuring,
    TimedLayer,
)
from meshd.wire.hello import Bans, Go, Hello, JoinRequest, NotAdmitted, Refusal, Welcome
from meshd.wire.lease import (
    Acquire,
    Admit,
    Begin,
    Fetched,
    Grant,
    Introduced,
    Loaded,
    Lost,
    NeededTensor,
    Needs,
    Neighbour,
    OfferedDevice,
    Progress,
    Reached,
    Reserve,
    WorkerOffer,
    as_bits,
    decode,
    from_bits,
    in_messages,
    mark,
    split_marks,
)
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_NEEDED_ROWS, MAX_TEXT_BYTES
from meshd.wire.message import plain
from meshd.wire.news import AwayNews, BanNews, BucketsNews, DigestNews, PresenceNews, RecordNews
from meshd.wire.versions import NativeVersion

Decode = Callable[[bytes], object]

HELLO = Hello(
    version=1,
    software="0.1",
    features=("resume",),
    name="anna",
    role="worker",
    incarnation=bytes(16),
    current=b"",
    fresh=bytes(8),
    chosen=b"",
    native=NativeVersion("mesh 4", "0c1e57098", "none", "cpu"),
    largest_frame=1 << 18,
    grace=120,
    bans_count=0,
    bans_digest=bytes(32),
    clock=1_800_000_000,
    record=b"record",
)
TOLD = models.ToldModel(bytes(16), ("a-Q4_0", "hf:b/a:Q4_0"), 1, 2, "Q4_0", "llama", bytes(32), b"")
CPU = OfferedDevice("CPU", "cpu", "some processor", 1 << 30, 1 << 31)
NEEDED = NeededTensor(511, 31, 1, (1 << 40) - 1, bytes(range(32)))
NEEDS = Needs(bytes(32), 1 << 40, 512, (NEEDED,))
MESSAGES: list[tuple[Decode, object]] = [
    (hello.decode, HELLO),
    (hello.decode, Bans((b"one", b"two"), last=True)),
    (hello.decode, Go()),
    (hello.decode, Refusal("banned", "why", "what to do")),
    (hello.decode_joining, JoinRequest("guest", "serve")),
    (hello.decode_joining, Welcome(b"chain", (b"r1", b"r2"), (b"b1",))),
    (hello.decode_joining, NotAdmitted("expired", "long ago", "ask again")),
    (lease.decode, Acquire(bytes(16), "model", "f" * 64, "pin")),
    (lease.decode, Acquire(bytes(16), "model", "f" * 64, "pin", ("rms_norm:64", "rope:64:9:64"))),
    (lease.decode, WorkerOffer((CPU,), True, "m", bytes(16), unfit=("its trial hung",))),
    (lease.decode, WorkerOffer((CPU,), True, "m", bytes(16))),
    (lease.decode, WorkerOffer((CPU,), True, "m", bytes(16), compressed=3)),
    (lease.decode, Neighbour(65_535, bytes(range(32)), bytes(16))),
    (lease.decode, Neighbour(0, bytes(32), bytes(16), compressed=1 << 16, always=True)),
    (lease.decode, Acquire(bytes(16), "model", "f" * 64, "pin", protocol="mesh 65535")),
    (lease.decode, WorkerOffer((CPU,), True, "m", bytes(16), protocol="mesh 2-3")),
    (lease.decode, Admit(bytes(range(32)), 0)),
    (lease.decode, Admit(bytes(range(32)), 65_535)),
    (lease.decode, Introduced()),
    (lease.decode, Reached(0, "no session with it")),
    (lease.decode, Reserve((1, 0, (1 << 60) - 1))),
    (lease.decode, Reserve((1,), fetch=True)),
    (lease.decode, Reserve((1,), fetch=True, hold=True)),
    (lease.decode, Acquire(bytes(16), "model", "f" * 64, "pin", marks=bytes(range(16)))),
    (lease.decode, WorkerOffer((CPU,), True, "m", bytes(16), lacks=b"\xff\1")),
    (lease.decode, Needs(bytes(32), 1 << 40, 512, (NEEDED, NEEDED), last=False)),
    (lease.decode, Needs(bytes(32), 1, 1, ())),
    (lease.decode, Fetched(1 << 40, "3 MB from one")),
    (lease.decode, Fetched(0, "nothing is missing", held=1 << 40)),
    (lease.decode, Begin()),
    (lease.decode, Loaded()),
    (lease.decode, Grant(bytes(16))),
    (lease.decode, Grant(bytes(16), compressed=1)),
    (lease.decode, Progress("hashing")),
    (lease.decode, Lost("failed", "it died", "start it again")),
    (capacity.decode, AskCapacity(("30=mul_mat:q4_1:576:1536,rms_norm:576", "1=rope:64:9:64"), measure=True)),
    (capacity.decode, AskCapacity()),
    (capacity.decode, AskCapacity(recent=True, lease=bytes(16), spans=((9, 5), (5, 0)))),
    (capacity.decode, Measuring("GPU0")),
    (capacity.decode, Capacity((MeasuredDevice(CPU, (TimedLayer(0, 1, 9), TimedLayer(7, 128, 10))),), "m")),
    (capacity.decode, Capacity((), "", (MeasuredPath(bytes(32), 850, 0),), busy=True)),
    (capacity.decode, Capacity((), "", computed=(ComputedSpan(5, 6),))),
    (models.decode, models.AskModels()),
    (models.decode, models.AskPieces(bytes(16))),
    (models.decode, models.AskTensors(bytes(16))),
    (models.decode, models.ModelsTold(())),
    (models.decode, models.ModelsTold((TOLD,), disk=models.ToldDisk(1 << 60, 0))),
    (models.decode, models.ModelsTold((TOLD, TOLD), last=False)),
    (models.decode, models.ReadingModel("10 %")),
    (models.decode, models.PiecesTold((1, 1 << 40 - 1))),
    (models.decode, models.PieceHashes(bytes(64))),
    (models.decode, models.TensorHashes(bytes(64))),
    (models.decode, models.NoPieces("it is gone")),
    (news.decode, RecordNews(b"record")),
    (news.decode, BanNews(b"ban")),
    (news.decode, PresenceNews((b"p" * 108, b"q" * 108))),
    (news.decode, AwayNews(b"a" * 140)),
    (news.decode, DigestNews(b"d" * 16)),
    (news.decode, BucketsNews(tuple(bytes([part]) * 8 for part in range(256)))),
]


def encoded(message: object) -> bytes:
    made: bytes = message.encode()  # type: ignore[attr-defined]
    return made


def changed(message: object, fields: Mapping[str, object]) -> bytes:
    made: bytes = msgpack.packb({**msgpack.unpackb(encoded(message)), **fields})
    return made


OPTIONAL = (
    *("hint", "software", "push", "compressed", "always", "cards", "operations", "unfit", "lease_id"),
    *("protocol", "number", "measure", "busy", "recent", "fetch", "lacks", "marks", "lease", "spans"),
    *("computed", "core_set", "hold", "held", "disk"),
)


@pytest.mark.parametrize(("decode", "message"), MESSAGES)
def test_each_field_is_needed_or_has_a_default(decode: Decode, message: object) -> None:
    for name in msgpack.unpackb(encoded(message)):
        fields = msgpack.unpackb(encoded(message))
        del fields[name]
        try:
            again = decode(msgpack.packb(fields))
        except RemoteProtocolError as error:
            assert name in error.what
        else:
            assert name in OPTIONAL
            assert again is not None


@pytest.mark.parametrize("decode", list(dict.fromkeys(decode for decode, _ in MESSAGES)))
@given(st.binary(max_size=200))
def test_noise_is_no_message(decode: Decode, noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(noise)


@pytest.mark.parametrize(
    ("message", "fields", "named"),
    [
        (
            WorkerOffer((CPU,), True, "m", bytes(16)),
            {"devices": [["CPU", "cpu", "", 1, 1]] * 2, "cards": None},
            "devices",
        ),
        (Acquire(bytes(16), "", "", ""), {"operations": ["a b"]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": ["a,b"]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": ["-a"]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": [""]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": ["a\n"]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": ["a" * 65]}, "operations"),
        (Acquire(bytes(16), "", "", ""), {"operations": ["a"] * 65}, "operations"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"unfit": ["a", "b"]}, "unfit"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"unfit": ["a" * 1025]}, "unfit"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"cards": []}, "cards"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"cards": ["c" * 65]}, "cards"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"cards": [7]}, "cards"),
        (HELLO, {"incarnation": bytes(15)}, "incarnation"),
        (HELLO, {"current": bytes(15)}, "current"),
        (HELLO, {"fresh": bytes(16)}, "fresh"),
        (HELLO, {"chosen": bytes(1)}, "chosen"),
        (HELLO, {"native": ["a", "b", "c"]}, "native"),
        (HELLO, {"grace": 0}, "grace"),
        (HELLO, {"grace": 24 * 3600 + 1}, "grace"),
        (HELLO, {"largest_frame": 1}, "largest_frame"),
        (HELLO, {"name": "a\nb"}, "name"),
        (HELLO, {"name": "n" * 65}, "name"),
        (HELLO, {"record": bytes(4097)}, "record"),
        (HELLO, {"clock": -1}, "clock"),
        (HELLO, {"features": ["x"] * 65}, "features"),
        (HELLO, {"type": "nothing"}, "nothing"),
        (Bans((), last=True), {"entries": [bytes(4097)]}, "entries"),
        (Bans((), last=True), {"last": 1}, "last"),
        (Reserve((1,)), {"bytes": [1 << 60]}, "bytes"),
        (Reserve((1,)), {"bytes": [-1]}, "bytes"),
        (Reserve((1,)), {"bytes": [True]}, "bytes"),
        (Reserve((1,)), {"bytes": [1] * 17}, "bytes"),
        (Reserve((1,)), {"fetch": 1}, "fetch"),
        (Acquire(bytes(16), "m", "f", "p"), {"marks": bytes(9)}, "marks"),
        (Acquire(bytes(16), "m", "f", "p"), {"marks": bytes(8 * 4097)}, "marks"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"lacks": bytes(513)}, "lacks"),
        (NEEDS, {"content": bytes(31)}, "content"),
        (NEEDS, {"size": (1 << 40) + 1}, "size"),
        (NEEDS, {"files": 0}, "files"),
        (NEEDS, {"files": 513}, "files"),
        (NEEDS, {"files": 511}, "tensors"),
        (NEEDS, {"size": (1 << 40) - 1}, "tensors"),
        (NEEDS, {"tensors": bytes(53)}, "tensors"),
        (NEEDS, {"tensors": bytes(52 * 1025)}, "tensors"),
        (NEEDS, {"tensors": bytes(52)}, "tensors"),
        (NEEDS, {"last": 1}, "last"),
        (Fetched(0, ""), {"count": -1}, "count"),
        (Fetched(0, ""), {"text": "t" * 1025}, "text"),
        (Fetched(0, ""), {"held": (1 << 40) + 1}, "held"),
        (Reserve((1,)), {"hold": 1}, "hold"),
        (Grant(bytes(16)), {"lease_id": bytes(17)}, "lease_id"),
        (Acquire(bytes(16), "m", "f", "p"), {"protocol": "mesh  2"}, "protocol"),
        (Acquire(bytes(16), "m", "f", "p"), {"protocol": "mesh 123456"}, "protocol"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"protocol": "m" * 17}, "protocol"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"protocol": 2}, "protocol"),
        (Admit(bytes(32), 1), {"number": -1}, "number"),
        (Admit(bytes(32), 1), {"number": 65_536}, "number"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"lease_id": bytes(15)}, "lease_id"),
        (WorkerOffer((CPU,), True, "m", bytes(16)), {"lease_id": None}, "lease_id"),
        (Admit(bytes(32), 1), {"peer": bytes(31)}, "peer"),
        (Admit(bytes(32), 1), {"number": None}, "number"),
        (Neighbour(1, bytes(32), bytes(16)), {"peer": "a" * 32}, "peer"),
        (Neighbour(1, bytes(32), bytes(16)), {"lease_id": bytes(15)}, "lease_id"),
        (Neighbour(1, bytes(32), bytes(16)), {"number": 65_536}, "number"),
        (Neighbour(1, bytes(32), bytes(16)), {"compressed": (1 << 16) + 1}, "compressed"),
        (Neighbour(1, bytes(32), bytes(16)), {"always": 1}, "always"),
        (Reached(1, ""), {"number": -1}, "number"),
        (Reached(1, ""), {"why_not": 1}, "why_not"),
        (Grant(bytes(16)), {"compressed": -1}, "compressed"),
        (
            WorkerOffer((), False, "", bytes(16)),
            {"devices": [["CPU", "cpu", "", 1, 2]] * 17},
            "devices",
        ),
        (WorkerOffer((), False, "", bytes(16)), {"devices": [["CPU", "npu", "", 1, 2]]}, "devices"),
        (WorkerOffer((), False, "", bytes(16)), {"devices": [["CPU", "cpu", "", -1, 2]]}, "devices"),
        (
            WorkerOffer((), False, "", bytes(16)),
            {"devices": [["CPU", "cpu", "", 1, 1 << 60]]},
            "devices",
        ),
        (WorkerOffer((), False, "", bytes(16)), {"devices": [["C\n", "cpu", "", 1, 2]]}, "devices"),
        (WorkerOffer((), False, "", bytes(16)), {"devices": [["CPU", "cpu", "", 1]]}, "devices"),
        (WorkerOffer((), False, "", bytes(16)), {"devices": [["CPU", "cpu", "", True, 2]]}, "devices"),
        (Welcome(b"", (), ()), {"records": [b"r"] * 65}, "records"),
        (Welcome(b"", (), ()), {"chain": bytes(MAX_CHAIN_BYTES + 1)}, "chain"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(
    message: object, fields: Mapping[str, object], named: str
) -> None:
    decode = next(one for one, kind in MESSAGES if type(kind) is type(message))
    with pytest.raises(RemoteProtocolError, match=named):
        decode(changed(message, fields))


def test_news_of_a_later_version_are_left_alone() -> None:
    assert news.decode(msgpack.packb({"type": "weather", "x": 1})) is None
    with pytest.raises(RemoteProtocolError):
        news.decode(msgpack.packb({"type": ""}))


texts = st.text(st.characters(), max_size=40) | st.text(max_size=4).map(lambda text: text * 400)


@given(texts, st.integers(0, 50) | st.just(MAX_TEXT_BYTES))
def test_plain_text_is_printable_and_short(text: str, most: int) -> None:
    made = plain(text, most)
    assert made.isprintable()
    assert len(made.encode()) <= most
    assert plain(made, most) == made


def test_good_text_stays() -> None:
    assert plain("cannot read `modèle.gguf`") == "cannot read `modèle.gguf`"
    assert plain("a\nb\x1b\ud800") == "a?b??"
    assert plain("ää", 3) == "ä"


@given(texts, texts)
def test_refusals_are_read_whatever_they_say(text: str, hint: str) -> None:
    assert isinstance(hello.decode(hello.Refusal("code", text, hint).encode()), hello.Refusal)
    assert isinstance(hello.decode_joining(hello.NotAdmitted("code", text, hint).encode()), hello.NotAdmitted)
    assert isinstance(lease.decode(lease.Lost("code", text, hint).encode()), lease.Lost)
    assert isinstance(lease.decode(lease.Progress(text).encode()), lease.Progress)


@given(texts)
def test_any_model_name_can_be_asked_for(name: str) -> None:
    asked = lease.Acquire(bytes(16), name, "f" * 64, "pin")
    assert isinstance(lease.decode(asked.encode()), lease.Acquire)


@given(st.lists(st.booleans(), max_size=70))
def test_flags_are_what_they_were(flags: list[bool]) -> None:
    bits = as_bits(flags)
    assert len(bits) == -(-len(flags) // 8)
    assert from_bits(bits, len(flags)) == flags


@given(st.binary(max_size=9), st.integers(0, 80))
def test_any_bits_give_as_many_flags_as_are_wanted(bits: bytes, count: int) -> None:
    assert len(from_bits(bits, count)) == count
    assert not any(from_bits(bits, count)[8 * len(bits) :])


def test_marks_are_read_one_by_one() -> None:
    digests = [bytes([number]) * 32 for number in range(3)]
    assert split_marks(b"".join(map(mark, digests))) == list(map(mark, digests))
    assert split_marks(b"") == []


@pytest.mark.parametrize("count", [0, 1, MAX_NEEDED_ROWS, MAX_NEEDED_ROWS + 1, 4 * MAX_NEEDED_ROWS])
def test_a_part_crosses_in_messages(count: int) -> None:
    rows = tuple(NeededTensor(0, 0, number, 1, number.to_bytes(32, "big")) for number in range(count))
    whole = Needs(bytes(32), 1 << 20, 1, rows)
    messages = [decode(one.encode()) for one in in_messages(whole)]
    assert len(messages) == max(1, -(-count // MAX_NEEDED_ROWS))
    assert all(isinstance(one, Needs) for one in messages)
    assert [one.last for one in messages if isinstance(one, Needs)] == [False] * (len(messages) - 1) + [True]
    assert tuple(row for one in messages if isinstance(one, Needs) for row in one.tensors) == rows
