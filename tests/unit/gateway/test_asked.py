"""What is read of a request's body; its form comes from anybody."""

import asyncio

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.asked import AskedBody, read_form, read_json
from meshd.gateway.failure import HttpRefusal

BOUNDARY = "b0undary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"
SOUND = bytes(range(256)) * 2000 + b"\r\n--not the boundary\r\n"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
FILE = part("file", SOUND, '; filename="a.wav"')


def form(body: bytes, kind: str = TYPE) -> AskedBody:
    return asyncio.run(read_form(body, kind))


def why_not(body: bytes, kind: str = TYPE) -> str:
    with pytest.raises(HttpRefusal) as caught:
        form(body, kind)
    failure = caught.value.failure
    assert (failure.status, failure.code) == (400, "invalid_form")
    return failure.message


def test_of_an_object_what_the_gateway_acts_on() -> None:
    asked = read_json(b'{"model": "m", "stream": true, "seed": 5, "top_k": 3, "messages": []}')
    assert asked == AskedBody("m", stream=True, has_seed=True, sampling={"top_k": 3}, can_grow=True)
    assert read_json(b'{"seed": -1, "stream": "true"}') == AskedBody(None, stream=False, can_grow=True)
    assert not read_json(b"{}").can_grow
    assert not read_json(b'{"prompt": "' + b"x" * (1 << 20) + b'"}').can_grow


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_form_the_model_and_whether_it_streams(order: int) -> None:
    parts = [FILE, part("model", b"m\xc3\xbcller"), part("stream", b"true"), part("seed", b"5")][::order]
    assert form(b"".join(parts) + END) == AskedBody("müller", stream=True)
    assert form(FILE + END) == AskedBody(None, stream=False)
    assert form(part("stream", b"True") + END) == AskedBody(None, stream=False)


def test_what_clients_send_can_be_read() -> None:
    async def scenario() -> AskedBody:
        data = aiohttp.FormData({"model": "tiny", "stream": "true"})
        data.add_field("file", SOUND, filename="a.wav", content_type="audio/wav")
        payload = data()
        return await read_form(await payload.as_bytes(), payload.headers["Content-Type"])

    assert asyncio.run(scenario()) == AskedBody("tiny", stream=True)


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
    assert "ends early" in why_not(part("model", b"\xff") + END)
    nested = (
        f'--{BOUNDARY}\r\nContent-Type: multipart/mixed; boundary="c"\r\n\r\n--c\r\n\r\n--c--\r\n'.encode()
    )
    assert "one of its parts is a form" in why_not(nested + END)


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
