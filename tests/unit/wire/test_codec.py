"""Every message of the wire, by its annotations: good ones cross, anything else raises the declared error."""

import dataclasses
import math
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire import (
    browser,
    capacity,
    hello,
    lease,
    models,
    news,
    relay,
    signal,
)
from meshd.wire.codec import Family, Message, decode_as, plan_of, unbounded_plan_of
from meshd.wire.limits import (
    MAX_CONTROL_BYTES,
    NEEDED,
    OMIT,
    OR_NULL,
    ROW,
    AtMost,
    Between,
    Check,
    Items,
    Name,
    Size,
    Text,
)
from meshd.wire.message import pack_message
from meshd.wire.signal import SignalBody

from tests.hostile.words import members, wire_types

from .drawn import messages

Decode = Callable[[bytes], object]
FAMILIES: list[tuple[Decode, object]] = [
    (hello.decode, hello.Greeting),
    (hello.decode_joining, hello.JoinMessage),
    (lease.decode, lease.LeaseMessage),
    (capacity.decode, capacity.CapacityMessage),
    (models.decode, models.ModelsMessage),
    (news.decode, news.News),
    (models.decode_serving, models.ServingTold),
    (relay.decode_from_node, relay.FromNode),
    (relay.decode_from_relay, relay.FromRelay),
    (signal.decode_offer, signal.OfferSignal),
    (signal.decode_punching, signal.Punching),
    (signal.decode_search, signal.PortSearchMessage),
    (SignalBody.decode, SignalBody),
    (browser.decode_browser, browser.BrowserMessage),
]
MESSAGES: list[tuple[Decode, Any]] = [(decode, kind) for decode, union in FAMILIES for kind in members(union)]
each_family = pytest.mark.parametrize(
    ("decode", "union"), FAMILIES, ids=lambda one: getattr(one, "__module__", "")
)
patient = settings(  # each example draws a whole message
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=80)
    | st.binary(max_size=80)
    | st.sampled_from([bytes(10_000), "x" * 10_000, [0] * 4097, {str(n): n for n in range(100)}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=6,
)


def drawn(union: object) -> st.SearchStrategy[Any]:
    """Return the messages of a family."""
    return st.sampled_from(members(union)).flatmap(messages)


def test_every_message_is_here() -> None:
    spoken = {kind for _, union in FAMILIES for kind in members(union)}
    assert spoken == {kind for kind in wire_types() if issubclass(kind, Message)}


@each_family
@patient
@given(data=st.data())
def test_a_good_message_crosses_and_unknown_fields_are_left_alone(
    decode: Decode, union: object, data: st.DataObject
) -> None:
    message = data.draw(drawn(union))
    crossing = message.encode()
    assert decode(crossing) == message
    later = msgpack.packb({**msgpack.unpackb(crossing), "later": [1, {"a": b"b"}]})
    assert decode(later) == message


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the places of all values inside."""
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [at for step, one in inner for at in [(*path, step), *paths(one, (*path, step))]]


@each_family
@patient
@given(data=st.data())
def test_what_is_changed_inside_is_refused_or_is_another_good_message(
    decode: Decode, union: object, data: st.DataObject
) -> None:
    fields = msgpack.unpackb(data.draw(drawn(union)).encode())
    for path in data.draw(st.lists(st.sampled_from(paths(fields)), min_size=1, max_size=2)):
        place: Any = fields
        try:
            for step in path[:-1]:
                place = place[step]
            if data.draw(st.integers(0, 3)) == 0:
                del place[path[-1]]
            else:
                place[path[-1]] = data.draw(ANYTHING)
        except (LookupError, TypeError):  # the first change took the place of the second
            continue
    try:
        found = decode(msgpack.packb(fields, unicode_errors="surrogatepass"))
    except RemoteProtocolError as error:
        assert error.code == "message"
        assert error.what.isprintable()
        return
    assert found is None or decode(found.encode()) == found  # type: ignore[attr-defined]


@each_family
@given(noise=st.binary(max_size=200))
def test_noise_is_no_message(decode: Decode, union: object, noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(noise)


BOMBS = {
    "announced list": b"\x81\xa4type\xdd\xff\xff\xff\xff",
    "announced map": b"\xdf\xff\xff\xff\xff",
    "announced text": b"\x81\xa4type\xdb\xff\xff\xff\xff",
    "deep": b"\x81\xa1a" + b"\x91" * 60_000,
    "lists": msgpack.packb({str(n): [[]] * 4000 for n in range(16)}),
    "maps": msgpack.packb({str(n): [{}] * 4000 for n in range(16)}),
    "texts": msgpack.packb({str(n): ["ab"] * 1300 for n in range(16)}),
}


@each_family
@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_is_bounded_by_the_size_of_a_message(decode: Decode, union: object, bomb: str) -> None:
    data = BOMBS[bomb]
    if not bomb.startswith(("announced", "deep")):  # so that it gets as far as its fields
        kind = members(union)[-1]
        assert isinstance(kind, type) and issubclass(kind, Message)
        data = msgpack.packb({kind.tag_key: kind.tag, **msgpack.unpackb(data)})
    read(decode, data)  # compiled before it is measured
    tracemalloc.start()
    try:
        read(decode, data)
        assert tracemalloc.get_traced_memory()[1] < 100 * min(len(data), MAX_CONTROL_BYTES) + (64 << 10)
    finally:
        tracemalloc.stop()


def read(decode: Decode, data: bytes) -> None:
    """Read what is a message, or refuse it."""
    with suppress(RemoteProtocolError):
        decode(data)


# --- what annotations mean


@dataclass(frozen=True, slots=True)
class Inner:
    """A part of Sample."""

    word: Annotated[str, Text(4, least=1)]
    real: Annotated[float, Between(-1.0, 1.0)] = 0.0


@dataclass(frozen=True, slots=True)
class Sample(Message, tag="sample"):
    """One field of each kind."""

    count: Annotated[int, Between(1, 9)]
    blob: Annotated[bytes, Size(0, 2)] = b""
    pieces: Annotated[bytes, AtMost(8, least=2, step=2)] = b"ab"
    inners: Annotated[tuple[Inner, ...], Items(2)] = ()
    pairs: Annotated[tuple[tuple[bool, bool], ...], Items(2), OR_NULL] = ()
    row: Annotated[Inner, ROW] = Inner("a")
    flag: Annotated[bool, NEEDED] = False
    even: Annotated[int, Between(0, 9), Check(lambda number: number % 2 == 0, "even"), Name("e")] = 0
    maybe: Annotated[Annotated[int, Between(0, 9)] | None, OMIT] = None
    code: Annotated[str, Text(3, pattern=re.compile("[a-z]*"))] = ""
    letters: Annotated[str, Text(3, in_letters=True)] = "äöü"


GOOD = {"type": "sample", "count": 1, "flag": True}
SAMPLES: Family[Sample] = Family("sample", Sample)


def test_defaults_stand_for_what_is_missing_or_null() -> None:
    assert SAMPLES.decode(msgpack.packb(GOOD)) == Sample(1, flag=True)
    assert SAMPLES.decode(msgpack.packb({**GOOD, "pairs": None, "maybe": None})) == Sample(1, flag=True)
    assert "maybe" not in msgpack.unpackb(Sample(1).encode())
    assert list(msgpack.unpackb(Sample(1, even=2).encode()))[-3:] == ["e", "code", "letters"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"count": True}, "field `count` of sample must be an integer from 1 to 9"),
        ({"count": 1.0}, "field `count` of sample must be an integer from 1 to 9"),
        ({"count": 10}, "field `count` of sample must be an integer from 1 to 9"),
        ({"count": None}, "field `count` of sample must be an integer from 1 to 9"),
        ({"blob": b"a"}, "field `blob` of sample must be 0 or 2 bytes"),
        ({"blob": "ab"}, "field `blob` of sample must be 0 or 2 bytes"),
        ({"blob": None}, "field `blob` of sample must be 0 or 2 bytes"),
        ({"pieces": b"abc"}, "field `pieces` of sample must be 1 to 4 pieces of 2 bytes"),
        ({"pieces": b""}, "field `pieces` of sample must be 1 to 4 pieces of 2 bytes"),
        ({"inners": [{"word": "a"}] * 3}, "field `inners` of sample must be a list of at most 2 entries"),
        (
            {"inners": [{"word": "a"}, {"word": ""}]},
            "field `inners` of sample: its `[1].word` must be 1 to 4 bytes of printable text",
        ),
        (
            {"inners": [{}]},
            "field `inners` of sample: its `[0].word` is missing: it must be 1 to 4 bytes of printable text",
        ),
        ({"inners": [7]}, "field `inners` of sample: its `[0]` must be a map"),
        ({"inners": [{"word": "a", "real": math.nan}]}, "its `[0].real` must be a number from -1.0 to 1.0"),
        ({"inners": [{"word": "a", "real": math.inf}]}, "its `[0].real` must be a number from -1.0 to 1.0"),
        ({"inners": [{"word": "a", "real": False}]}, "its `[0].real` must be a number from -1.0 to 1.0"),
        ({"inners": [{"word": "äää"}]}, "its `[0].word` must be 1 to 4 bytes of printable text"),
        ({"inners": [{"word": "a\n"}]}, "its `[0].word` must be 1 to 4 bytes of printable text"),
        ({"pairs": [[True]]}, "its `[0]` must be a list of 2 entries"),
        ({"pairs": [[True, 1]]}, "its `[0][1]` must be true or false"),
        ({"row": ["a"]}, "field `row` of sample must be a list of 2 entries"),
        ({"e": 3}, "field `e` of sample must be even"),
        ({"code": "a1"}, "field `code` of sample must be at most 3 bytes of printable text that matches"),
        ({"code": "abcd"}, "field `code` of sample must be at most 3 bytes of printable text that matches"),
        ({"letters": "äöüß"}, "field `letters` of sample must be at most 3 letters of printable text"),
        ({"type": "other"}, "sample message of unknown type `other`"),
        ({"type": ["sample"]}, "field `type` of a sample message must be"),
        ({"type": "x" * 17}, "field `type` of a sample message must be"),
    ],
)
def test_an_error_names_message_field_and_what_is_expected(change: dict[str, object], what: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        SAMPLES.decode(msgpack.packb({**GOOD, **change}))
    assert what in caught.value.what
    assert caught.value.code == "message"


def test_what_must_be_there_must_be_there() -> None:
    with pytest.raises(RemoteProtocolError, match="field `flag` of sample is missing: it must be true or"):
        SAMPLES.decode(msgpack.packb({"type": "sample", "count": 1}))
    with pytest.raises(RemoteProtocolError, match="field `type` of a sample message must be"):
        SAMPLES.decode(msgpack.packb({"count": 1}))


def test_a_type_of_a_later_version_is_known_as_such() -> None:
    assert SAMPLES.decode_known(msgpack.packb({"type": "later"})) is None
    assert SAMPLES.decode_known(msgpack.packb(GOOD)) == Sample(1, flag=True)


@pytest.mark.parametrize(
    "hint", [int, str, bytes, float, tuple[bool, ...], dict[str, str], int | str, object]
)
def test_a_field_without_bounds_is_no_declaration(hint: Any) -> None:
    kind = dataclasses.make_dataclass("Loose", [("field", hint)])
    with pytest.raises(TypeError, match=r"Loose\.field: "):
        plan_of(kind)


def test_a_message_that_cannot_be_packed_harms_no_later_one() -> None:
    with pytest.raises((OverflowError, ValueError)):
        pack_message({"a": bytes(100), "b": 1 << 64})
    assert pack_message({"a": 1}) == b"\x81\xa1a\x01"


def test_a_limit_holds_for_formats_without_types() -> None:
    with pytest.raises(RemoteProtocolError, match="message of 11 bytes, at most 10 are taken"):
        decode_as(Inner, msgpack.packb({"word": "abcd"}), limit=10)


# Values of this user's own programs.


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class Own:
    """One field of each kind, without bounds."""

    colour: Colour
    step: Literal["one", "two"] = "one"
    count: int = 0
    text: str = ""
    real: float = 0.0
    parts: tuple[Part, ...] = ()
    pair: tuple[Part, bool] = (Part("a"), True)
    maybe: int | None = None


OWN = Own(Colour.BLUE, "two", -(1 << 70), "any\ntext" * 99, 1e300, (Part("x", 1), Part("y")), maybe=7)
ROW_OF = {
    "colour": "blue",
    "step": "two",
    "count": -(1 << 70),
    "text": "any\ntext" * 99,
    "real": 1e300,
    "parts": [{"name": "x", "count": 1}, {"name": "y", "count": 0}],
    "pair": [{"name": "a", "count": 0}, True],
    "maybe": 7,
}


def test_values_of_own_programs_cross_without_bounds() -> None:
    plan = unbounded_plan_of(Own)
    assert plan is unbounded_plan_of(Own)
    assert plan.write(OWN) == ROW_OF and plan.read(ROW_OF) == OWN
    assert plan.read({"colour": "red"}) == Own(Colour.RED)
    with pytest.raises(TypeError, match=r"Own\.count"):
        plan_of(Own)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"colour": "green"}, "`colour` of Own must be one of red, blue"),
        ({"colour": ["red"]}, "`colour` of Own must be one of red, blue"),
        ({"step": "three"}, "must be one of one, two"),
        ({"count": True}, "must be an integer"),
        ({"count": 1.5}, "must be an integer"),
        ({"text": 5}, "must be text"),
        ({"real": math.inf}, "must be a finite number"),
        ({"real": "1"}, "must be a finite number"),
        ({"parts": {}}, "must be a list"),
        ({"parts": [5]}, "its `[0]` must be a map"),
        ({"pair": [{"name": "a"}]}, "must be a list of 2 entries"),
        ({"pair": [{"name": "a"}, 1]}, "its `[1]` must be true or false"),
        ({"pair": [{"name": 1}, True]}, "its `[0].name` must be text"),
        ({"maybe": "x"}, "`maybe` of Own must be an integer"),
    ],
)
def test_a_wrong_value_of_an_own_program_is_named(change: dict[str, object], what: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        unbounded_plan_of(Own).read({**ROW_OF, **change})
    assert what in caught.value.what


def test_bytes_have_no_form_for_own_programs() -> None:
    kind = dataclasses.make_dataclass("Raw", [("blob", bytes)])
    with pytest.raises(TypeError, match=r"Raw\.blob"):
        unbounded_plan_of(kind)
