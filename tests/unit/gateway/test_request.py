"""Bodies: read with limits, parsed, and judged."""

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Share
from meshd.gateway import request as request_module
from meshd.gateway.dialects.chat import PassedOn
from meshd.gateway.dialects.dialect import Translation
from meshd.gateway.dialects.fields import with_fields
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.gateway.request import (
    Bodies,
    BodyOwner,
    OneModel,
    PlainModel,
    beyond_parsing,
    check_ready,
    find_model,
    has_remote_media,
    model_names,
    needs_fit,
    not_ready,
    parse_object,
    read_form,
    unknown_model,
    upstream_request,
)
from meshd.model.status import ModelState

from tests.process.gateway_fake import FakeModel, FakeModels, FakeServer, FakeUpstream, says
from tests.sim.loop import run

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON_VALUES, min_size=1, max_size=5), st.sampled_from(["", " ", "\r\n\t"]))
def test_fields_that_are_added_leave_the_others_as_they_are(fields: dict[str, object], behind: str) -> None:
    body = (json.dumps(fields) + behind).encode()
    assert parse_object(body) == fields
    extended = with_fields(body, {"top_k": 40, "samplers": ["top_k"]})
    assert extended.startswith(body.rstrip()[:-1])
    assert parse_object(extended) == {**fields, "top_k": 40, "samplers": ["top_k"]}


@given(st.binary())
def test_anything_else_is_refused_as_a_400(body: bytes) -> None:
    try:
        parse_object(body)
    except HttpRefusal as refusal:
        assert refusal.failure.status == 400
    else:
        assert isinstance(json.loads(body), dict)


@pytest.mark.parametrize(
    "body", [b"1" * 10_000, b'{"a":' * 50_000, b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}"]
)
def test_bodies_made_to_hurt_are_refused(body: bytes) -> None:
    with pytest.raises(HttpRefusal):
        parse_object(body)


MARKS = st.text('"\\,[{}]:ab', max_size=6)
MARKED = st.recursive(
    MARKS | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MARKS, inner, max_size=4),
    max_leaves=12,
)


def marks(value: object) -> int:
    """One for each list and object, and one for each value in them but the first."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(marks, inner))


@given(
    st.dictionaries(MARKS, MARKED, max_size=4), st.integers(0, 12), st.sampled_from([b"", b"x", b'"', b"\\"])
)
def test_values_are_counted_and_text_is_not(asked: dict[str, object], most: int, behind: bytes) -> None:
    body = json.dumps(asked).encode()
    with mock.patch.object(request_module, "API_BODY_VALUES", Share("", most, "node", "")):
        if marks(asked) <= most:
            assert parse_object(body) == asked
            return
        with pytest.raises(HttpRefusal) as refused:
            parse_object(body + behind)
    assert (refused.value.failure.status, refused.value.failure.code) == (413, "too_many_values")


def parts(value: object) -> int:
    """One for each string, name, list and object."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(parts, value.values()))
    return 1 + sum(map(parts, value)) if isinstance(value, list) else int(isinstance(value, str))


@given(
    st.dictionaries(MARKS, MARKED, max_size=4), st.integers(0, 12), st.sampled_from([b"", b"x", b'"', b"\\"])
)
def test_what_is_dear_is_counted_for_itself(asked: dict[str, object], most: int, behind: bytes) -> None:
    body = json.dumps(asked).encode()
    with mock.patch.object(request_module, "API_BODY_PARTS", Share("", most, "node", "")):
        if parts(asked) <= most:
            assert parse_object(body) == asked
            return
        with pytest.raises(HttpRefusal) as refused:
            parse_object(body + behind)
    assert (refused.value.failure.status, refused.value.failure.code) == (413, "too_many_values")


def longest(before: bytes, unit: Callable[[int], bytes], *, step: int = 1 << 15) -> bytes:
    """The longest body of these units that is not refused for its length of parse."""
    count = 0
    body = made = before
    while True:
        made += b",".join(unit(count + one) for one in range(step)) + b","
        whole = made + (b'"":0}' if before == b"{" else b"0]}")
        if beyond_parsing(whole) is not None or len(whole) > 64 << 20:
            return body
        count, body = count + step, whole


LIST = b'{"a":['
SHAPES: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "objects": (LIST, lambda _: b"{}"),
    "lists": (LIST, lambda _: b"[]"),
    "nested": (LIST, lambda _: b'{"":[{}]}'),
    "names": (b"{", lambda at: b'"%08x":0' % at),
    "names and numbers": (b"{", lambda at: b'"%x":1.5e-%d' % (at, at % 300)),
    "strings": (LIST, lambda at: b'"%08x"' % at),
    "tokens": (LIST, lambda _: b"1"),
    "fractions": (LIST, lambda _: b"1.2345678901234567890123e-309"),
    "long numbers": (LIST, lambda _: b"9" * 4000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_dearest_body_that_is_parsed_takes_no_second(shape: str) -> None:
    before, unit = SHAPES[shape]
    body = longest(before, unit, step=64 if shape == "long numbers" else 1 << 15)
    took = []
    for _ in range(3):  # a shared processor is slower at times
        began = time.thread_time()  # others use the same processor
        parse_object(body)
        took.append(time.thread_time() - began)
    assert min(took) < 0.5


def test_a_long_conversation_is_parsed() -> None:
    part = {"type": "text", "text": "\u00fcber [that], {this}: \\"}
    chat = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "yes"}] * 10_000
    asked = {"model": "tiny", "messages": chat}
    assert parse_object(json.dumps(asked, indent=2).encode()) == asked


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1.5,", b'"",', b'{"":[]},'])
def test_a_body_of_values_that_take_gigabytes_is_not_parsed(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda _text: pytest.fail("it stops everything meanwhile"))
    with pytest.raises(HttpRefusal) as refused:
        parse_object(b'{"prompt":[' + unit * ((16 << 20) // len(unit)) + b"0]}")
    assert refused.value.failure.status == 413


@pytest.mark.parametrize("text", ['a "quoted, [word]", \\ \n', ",", "[[", '\\"'])
def test_a_long_prompt_may_have_any_letters(text: str) -> None:
    body = json.dumps({"prompt": text * ((8 << 20) // len(text))}).encode()
    assert set(parse_object(body)) == {"prompt"}


def test_a_long_prompt_may_be_tokens() -> None:
    body = json.dumps({"prompt": [1] * (1 << 20)}).encode()
    assert set(parse_object(body)) == {"prompt"}


OWNER = BodyOwner(False, b"")


def member(name: int) -> BodyOwner:
    return BodyOwner(True, b"member %d" % name)


def default_bodies() -> Bodies:
    config = GatewayConfig()
    return Bodies(most_each=config.max_body_bytes, most_together=config.max_bodies_bytes)


def take_all(bodies: Bodies, caller: BodyOwner, *, step: int = 64 << 10) -> int:
    """As many more bytes as it may hold."""
    before = bodies.held
    while bodies.take(step, caller):
        pass
    return bodies.held - before


def test_one_caller_alone_may_hold_a_whole_body_or_two() -> None:
    assert take_all(default_bodies(), member(1)) == 64 << 20
    assert take_all(default_bodies(), OWNER) == 128 << 20


@given(st.lists(st.integers(1, 10), max_size=20))
def test_members_who_hold_all_they_can_leave_room_for_others(greedy: list[int]) -> None:
    bodies = default_bodies()
    for name in greedy:
        take_all(bodies, member(name), step=16 << 10)
    assert bodies.take(16 << 10, member(11)), "each takes half of what is left"
    assert take_all(bodies, OWNER) >= 64 << 20, "a whole body"
    assert bodies.take(64 << 10, BodyOwner(False, b"another key"))
    assert bodies.held <= 256 << 20


def test_room_that_is_given_back_can_be_taken_again() -> None:
    bodies = default_bodies()
    assert take_all(bodies, OWNER) == 128 << 20 and not bodies.take(1, OWNER)
    bodies.give_back(128 << 20, OWNER)
    assert bodies.held == 0
    assert take_all(bodies, OWNER) == 128 << 20


def test_a_whole_body_is_possible_however_little_is_allowed() -> None:
    for caller in (OWNER, member(1)):
        bodies = Bodies(most_each=1000, most_together=1)
        assert not bodies.take(1001, caller) and bodies.take(1000, caller)


class Trickle:
    """A body that comes at so many bytes a second, on a virtual clock."""

    def __init__(self, size: int, rate: int, *, every: float = 1.0) -> None:
        self._rate = rate
        self._left = size
        self._every = every

    async def readany(self) -> bytes:
        size = min(self._left, self._rate)
        self._left -= size
        await asyncio.sleep(self._every)
        return b"x" * size


async def received(size: int, rate: int, *, every: float = 1.0) -> int:
    content = Trickle(size, rate, every=every)
    request = mock.Mock(spec=web.BaseRequest, content_length=None, headers={}, content=content, protocol=None)
    async with default_bodies().read(request, b"") as body:
        return len(body)


@pytest.mark.parametrize(("size", "rate"), [(1 << 20, 2 << 10), (3 << 20, 8 << 10), (27 << 20, 32 << 10)])
def test_a_body_may_come_slowly(size: int, rate: int) -> None:
    assert run(received(size, rate)) == size


@pytest.mark.parametrize(
    ("size", "rate"), [(1 << 20, 1), (3 << 20, 2 << 10), (3 << 20, 4 << 10), (64 << 20, 36 << 10)]
)
def test_a_body_that_hardly_comes_is_refused(size: int, rate: int) -> None:
    """The largest one may not even take half an hour."""
    with pytest.raises(HttpRefusal) as refused:
        run(received(size, rate))
    assert refused.value.failure.code == "body_stalled"


def test_a_body_that_is_no_http_is_a_400() -> None:
    content = mock.Mock(readany=mock.AsyncMock(side_effect=web.RequestPayloadError("chunk")))
    request = mock.Mock(spec=web.BaseRequest, content_length=None, headers={}, content=content, protocol=None)

    async def main() -> None:
        async with default_bodies().read(request, b""):
            pytest.fail("nothing was read")

    with pytest.raises(HttpRefusal) as refused:
        run(main())
    assert (refused.value.failure.status, refused.value.failure.code) == (400, "invalid_body")


def test_a_body_in_tiny_pieces_takes_no_more_memory_than_it_counts() -> None:
    async def main() -> int:
        tracemalloc.start()
        try:
            await received(20_000, 2, every=0.0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert run(main()) < 200_000


@pytest.mark.parametrize("depth", [129, 900])
def test_a_body_is_nested_128_deep_at_most(depth: int) -> None:
    def nested(count: int) -> bytes:
        return b'{"metadata":' + b"[" * (count - 1) + b"]" * (count - 1) + b"}"

    assert parse_object(nested(128))
    with pytest.raises(HttpRefusal, match="nests lists and objects more than 128 deep") as caught:
        parse_object(nested(depth))
    assert caught.value.failure.status == 400


BOUNDARY = "b0undary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"
SOUND = bytes(range(256)) * 2000 + b"\r\n--not the boundary\r\n"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
FILE = part("file", SOUND, '; filename="a.wav"')


def form(body: bytes, kind: str = TYPE) -> tuple[object, bool]:
    asked, model = read_form("/v1/audio/transcriptions", body, kind)
    assert asked.body == body and not asked.can_grow
    return model, asked.stream


def why_not(body: bytes, kind: str = TYPE) -> str:
    with pytest.raises(HttpRefusal) as caught:
        form(body, kind)
    failure = caught.value.failure
    assert (failure.status, failure.code) == (400, "invalid_form")
    return failure.message


def translated(stream: bool = False, **fields: object) -> Translation:
    return Translation("/v1/completions", dict(fields), stream, PassedOn(), ("a tool",))


def test_of_an_object_what_the_gateway_acts_on() -> None:
    asked = upstream_request(translated(True, model="m", seed=5, top_k=3, prompt="a"))
    assert (asked.path, asked.stream, asked.has_seed, asked.notes) == (
        "/v1/completions",
        True,
        True,
        ("a tool",),
    )
    assert asked.sampling == {"top_k": 3} and asked.can_grow
    assert asked.body is not None and json.loads(asked.body) == {
        "model": "m",
        "seed": 5,
        "top_k": 3,
        "prompt": "a",
    }
    assert not upstream_request(translated(seed=-1)).has_seed
    assert not upstream_request(translated()).can_grow
    assert not upstream_request(translated(__no_such=1)).can_grow, "it is not passed on"
    assert not upstream_request(translated(prompt="x" * (1 << 20))).can_grow


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"prompt": ["a", "a\ud800"]}, "prompt[1]"),
        ({"model": {"b": [0, "\udfff"]}}, "model.b[1]"),
        ({"model": {"\ud800": 1}}, "model"),
    ],
)
def test_what_llama_server_cannot_read_is_named_by_its_place(fields: dict[str, object], place: str) -> None:
    with pytest.raises(HttpRefusal) as caught:
        upstream_request(translated(False, **fields))
    failure = caught.value.failure
    assert (failure.status, failure.code, failure.param) == (400, "invalid_json", place)
    assert f"`{place}`" in failure.message


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_form_the_model_and_whether_it_streams(order: int) -> None:
    parts = [FILE, part("model", b"m\xc3\xbcller"), part("stream", b"true"), part("seed", b"5")][::order]
    assert form(b"".join(parts) + END) == ("müller", True)
    assert form(FILE + END) == (None, False)
    assert form(part("stream", b"True") + END) == (None, False)


def test_what_clients_send_can_be_read() -> None:
    async def scenario() -> tuple[str, bool, object]:
        data = aiohttp.FormData({"model": "tiny", "stream": "true"})
        data.add_field("file", SOUND, filename="a.wav", content_type="audio/wav")
        payload = data()
        content, kind = await payload.as_bytes(), payload.headers["Content-Type"]
        asked, model = read_form("/t", content, kind)
        return asked.path, asked.stream, model

    assert asyncio.run(scenario()) == ("/t", True, "tiny")


def test_forms_that_are_none_or_too_much_are_refused() -> None:
    assert "ends early" in why_not(FILE)
    assert "ends early" in why_not(FILE[:1000])
    for body, kind in (
        (b"", TYPE),
        (b"\r\n" * (1 << 20) + FILE + END, TYPE),
        (FILE + END, "multipart/form-data"),
        (FILE + END, "multipart/form-data; boundary=another"),
    ):
        assert "does not begin with its boundary" in why_not(body, kind)
    assert "twice" in why_not(part("model", b"a") + part("model", b"b") + END)
    assert "`model` is longer than 4096 bytes" in why_not(part("model", b"a" * 5000) + END)
    assert "more than 64 parts" in why_not(part("x", b"") * 65 + END)
    assert "longer than 256" in why_not(FILE + END, TYPE + " " * 300)


PIECES = (FILE[:200], END, part("model", b"a"), b"\r\n", b"--", b"--b0undary")


@given(st.lists(st.sampled_from(PIECES)), st.binary())
def test_nothing_else_is_raised_for_any_bytes(pieces: list[bytes], more: bytes) -> None:
    for body in (b"".join(pieces), b"".join(pieces) + more, more):
        try:
            form(body)
        except HttpRefusal as refusal:
            assert refusal.failure.code == "invalid_form"


@given(st.text(max_size=300), st.binary(max_size=100))
def test_nothing_else_is_raised_for_any_type(rest: str, body: bytes) -> None:
    for kind in (f"multipart/form-data{rest}", f"multipart/form-data; boundary={rest}"):
        try:
            form(body, kind)
        except HttpRefusal as refusal:
            assert refusal.failure.code == "invalid_form"


HEADERS = ("Content-Length", "Content-Transfer-Encoding", "Content-Encoding", "Content-Type", "X")


@given(
    st.dictionaries(
        st.sampled_from((*HEADERS, "Content-Disposition")),
        st.text(st.characters(codec="latin-1"), max_size=40),
    )
)
def test_nothing_else_is_raised_for_any_headers_of_a_part(headers: dict[str, str]) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    body = f"--{BOUNDARY}\r\n{head}\r\nvalue\r\n".encode("latin-1") + END
    try:
        form(body)
    except HttpRefusal as refusal:
        assert refusal.failure.code == "invalid_form"


@pytest.mark.parametrize(("prompts", "choices", "fits"), [(2048, 1, True), (32, 64, True), (33, 64, False)])
def test_prompts_and_choices_are_bounded_together(prompts: int, choices: int, fits: bool) -> None:
    translation = translated(prompt=["a"] * prompts, n=choices)
    if fits:
        parts = upstream_request(translation).parts
        assert parts is not None and len(parts) == prompts * choices
        return
    with pytest.raises(HttpRefusal, match="2112 answers, all prompts together") as caught:
        upstream_request(translation)
    assert (caught.value.failure.status, caught.value.failure.param) == (400, "n")


@pytest.mark.parametrize(
    ("announced", "size", "status"), [(8, 8, 200), (None, 8, 200), (9, 0, 413), (None, 9, 413)]
)
def test_a_body_is_as_long_as_the_limit_at_most(announced: int | None, size: int, status: int) -> None:
    bodies = Bodies(most_each=8, most_together=100)
    content = Trickle(size, 3, every=0.0)
    request = mock.Mock(
        spec=web.BaseRequest, content_length=announced, headers={}, content=content, protocol=None
    )

    async def main() -> int:
        async with bodies.read(request, b"") as body:
            assert bodies.held == len(body)
            return len(body)

    if status == 200:
        assert run(main()) == size
    else:
        with pytest.raises(HttpRefusal, match="larger than 8 bytes") as refused:
            run(main())
        assert (refused.value.failure.status, refused.value.failure.code) == (413, "body_too_large")
    assert bodies.held == 0


def several(*names: str) -> FakeModels:
    return FakeModels(
        [
            FakeModel(name, FakeUpstream(Path("/s"), name), FakeServer(says(200, {})), (f"{name}-alias",))
            for name in names
        ]
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("tiny", "tiny"),
        ("big-alias", "big"),
        ("tiny:latest", "tiny"),
        ("big:latest", "big"),
        (None, "tiny"),
        ("", "tiny"),
        ("none", 404),
        ("none:latest", 404),
        ("tiny:other", 404),
        (5, 400),
        (["tiny"], 400),
    ],
)
def test_a_model_is_found_by_its_name(asked: object, found: str | int) -> None:
    models = several("tiny", "big")
    if isinstance(found, str):
        assert find_model(models, asked).upstream.model_name == found
    else:
        with pytest.raises(HttpRefusal) as refused:
            find_model(models, asked)
        assert refused.value.failure.status == found
    one = OneModel(FakeUpstream(Path("/s")))
    assert find_model(one, asked) is one.only, "whatever a client calls it"


@pytest.mark.parametrize(
    ("count", "ends"),
    [
        (0, "is not served here; no model is"),
        (1, "; `m0` is"),
        (2, "; `m0`, `m1` are"),
        (32, "`m31` are"),
        (33, "`m31`, … are"),
    ],
)
def test_who_asks_for_another_model_is_told_which_there_are(count: int, ends: str) -> None:
    names = [f"m{number}" for number in range(count)]
    models = several(*names, "")
    assert model_names(models) == names
    failure = unknown_model(models, "x" * 300)
    assert (failure.status, failure.code) == (404, "model_not_found")
    assert failure.message.startswith(f"the model `{'x' * 200}` is not") and failure.message.endswith(ends)


@pytest.mark.parametrize("state", list(ModelState))
def test_a_model_that_is_not_ready_is_refused_with_its_state(state: ModelState) -> None:
    now = Readiness(state, "because", retry_after=7)
    upstream = FakeUpstream(Path("/s"), readiness=now)
    models = OneModel(upstream)
    assert models.readiness is now and models.all == (models.only,)
    turn = PlainModel(upstream).turn()
    assert turn.notice == "" and run(turn.begin()) is (None if state is ModelState.READY else now)
    turn.end()
    if state is ModelState.READY:
        check_ready(now)
        return
    with pytest.raises(HttpRefusal) as refused:
        check_ready(now)
    failure = refused.value.failure
    assert failure == not_ready(now) and not failure.has_waited and not_ready(now, has_waited=True).has_waited
    assert (failure.status, failure.code, failure.type) == (503, f"model_{state}", "not_ready_error")
    assert failure.message == f"the model is not ready ({state}): because" and failure.retry_after == 7
    assert failure.is_final is (state is ModelState.FAILED)


@pytest.mark.parametrize(
    ("part", "remote"),
    [
        ({"type": "image_url", "image_url": {"url": "https://host/a.png"}}, True),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}, False),
        ({"type": "image_url", "image_url": {"url": "QUJD" * 40}}, False),
        ({"type": "image_url", "image_url": {"url": "httpx"}}, True),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, True),
        ({"type": "image_url", "image_url": {"url": "x" * 63 + ":"}}, True),
        ({"type": "image_url", "image_url": {"url": "x" * 64 + ":"}}, False),
        ({"type": "image_url", "image_url": {"url": 5}}, False),
        ({"type": "image_url", "image_url": {}}, False),
        ({"type": "input_audio", "input_audio": {"data": "ftp://host/a"}}, True),
        ({"type": "image", "source": {"type": "url", "url": "http://host/a"}}, True),
        ({"type": "text", "text": "http://host/a", "source": "http://host/a"}, False),
    ],
)
def test_no_address_is_fetched_for_media(part: dict[str, object], remote: bool) -> None:
    assert has_remote_media({"messages": [{"role": "user", "content": [part]}]}) is remote


@pytest.mark.parametrize(
    ("roles", "more", "fits"),
    [
        ("u", {}, True),
        ("uau", {}, True),
        ("su", {}, True),
        ("du", {}, True),
        ("sua", {}, True),
        ("uu", {}, False),
        ("ss", {}, False),
        ("us", {}, False),
        ("ud", {}, False),
        ("sa", {}, False),
        ("a", {}, False),
        ("s", {}, False),
        ("ut", {}, False),
        ("u", {"tools": [{"type": "function"}]}, False),
        ("u", {"tools": []}, True),
    ],
)
def test_messages_are_fitted_unless_every_template_takes_them(
    roles: str, more: dict[str, object], fits: bool
) -> None:
    names = {"u": "user", "a": "assistant", "s": "system", "d": "developer", "t": "tool"}
    messages = [{"role": names[role], "content": "x"} for role in roles]
    assert needs_fit({"messages": messages, **more}) is not fits
    called = [*messages[:-1], {**messages[-1], "tool_calls": [{"id": "1"}]}]
    assert needs_fit({"messages": called, **more})
