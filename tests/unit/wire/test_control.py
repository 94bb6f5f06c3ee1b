"""Control messages: fields that do not fit together are refused, and no message for the words in it."""

from collections.abc import Mapping

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire import hello, lease, news
from meshd.wire.codec import Message
from meshd.wire.lease import (
    Acquire,
    NeededTensor,
    Needs,
    OfferedDevice,
    WorkerOffer,
    as_bits,
    decode,
    from_bits,
    in_messages,
    mark,
    split_marks,
)
from meshd.wire.limits import MAX_NEEDED_ROWS, MAX_TEXT_BYTES
from meshd.wire.message import plain

CPU = OfferedDevice("CPU", "cpu", "some processor", 1 << 30, 1 << 31)
NEEDS = Needs(bytes(32), 1 << 40, 512, (NeededTensor(511, 31, 1, (1 << 40) - 1, bytes(range(32))),))
ASKED = Acquire(bytes(16), "m", "f", "p")
OFFERED = WorkerOffer((CPU,), True, "m", bytes(16))


def changed(message: Message, fields: Mapping[str, object]) -> bytes:
    made: bytes = msgpack.packb({**msgpack.unpackb(message.encode()), **fields})
    return made


@pytest.mark.parametrize(
    ("message", "fields", "named"),
    [
        *((ASKED, {"operations": [word]}, "operations") for word in ("a b", "a,b", "-a", "", "a\n")),
        *((ASKED, {"protocol": word}, "protocol") for word in ("mesh  2", "mesh 123456")),
        (OFFERED, {"devices": [["CPU", "cpu", "", 1, 1]] * 2, "cards": None}, "devices"),
        (OFFERED, {"devices": [["CPU", "npu", "", 1, 2]]}, "devices"),
        (OFFERED, {"unfit": ["a", "b"]}, "unfit"),
        (OFFERED, {"cards": []}, "cards"),
        (NEEDS, {"files": 511}, "tensors"),
        (NEEDS, {"size": (1 << 40) - 1}, "tensors"),
        (NEEDS, {"tensors": bytes(53)}, "tensors"),
        (NEEDS, {"tensors": bytes(52)}, "tensors"),
    ],
)
def test_fields_that_do_not_fit_their_pattern_or_each_other_are_refused_by_name(
    message: Message, fields: Mapping[str, object], named: str
) -> None:
    assert lease.decode(message.encode()) == message
    with pytest.raises(RemoteProtocolError, match=named):
        lease.decode(changed(message, fields))


def test_an_offer_of_an_earlier_version_names_no_cards() -> None:
    fields = msgpack.unpackb(OFFERED.encode())
    del fields["cards"]
    assert lease.decode(msgpack.packb(fields)) == OFFERED


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
