"""UPnP: searches, descriptions and calls as routers write them, and XML that means harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.igd import (
    DEVICES,
    SERVICES,
    HttpReply,
    IgdControl,
    ReplyParser,
    SoapFault,
    add_arguments,
    at_address,
    read_address,
    read_description,
    read_search_answer,
    read_soap,
    search,
    soap,
)

HOST, URL = "192.168.1.1", "http://192.168.1.1:5000/root.xml"
CONTROL = IgdControl(SERVICES[1], "http://192.168.1.1:5000/ctl")


def _answer(location: str, st_: str = DEVICES[0]) -> bytes:
    return f"HTTP/1.1 200 OK\r\nEXT:\r\nST: {st_}\r\nLOCATION: {location}\r\n\r\n".encode()


def test_a_search() -> None:
    text = search(DEVICES[0], group=True).decode()
    assert text.startswith("M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n") and "MX: 1\r\n" in text
    assert text.endswith("\r\n\r\n") and "MX" not in search(DEVICES[0], group=False).decode()


def test_an_answer_to_a_search() -> None:
    assert read_search_answer(_answer(URL), sender=HOST) == URL


@pytest.mark.parametrize(
    "data",
    [
        _answer("http://192.168.1.2:5000/root.xml"),
        _answer("https://192.168.1.1/"),
        _answer("http://192.168.1.1@10.0.0.1/"),
        _answer("http://user@192.168.1.1/"),
        _answer("http://192.168.1.1:99999/"),
        _answer("http://[192.168.1.1/"),
        _answer("http://router.local/"),
        _answer("http://192.168.1.1/\x01"),
        _answer("http://192.168.1.1/" + "x" * 600),
        _answer(""),
        _answer(URL, "urn:schemas-upnp-org:device:MediaServer:1"),
        b"NOTIFY * HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 404 No\r\n\r\n",
        _answer(URL) + b"x" * 3000,
        b"\xff\xfe",
    ],
)
def test_answers_that_are_not_followed(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_search_answer(data, sender=HOST)


def _described(*services: tuple[str, str], base: str = "") -> bytes:
    inner = "".join(
        f"<service><serviceType>{kind}</serviceType><controlURL>{url}</controlURL></service>"
        for kind, url in services
    )
    device = f"<device><serviceList>{inner}</serviceList></device>"
    return f'<?xml version="1.0"?><root xmlns="u">{base}{device}</root>'.encode()


def test_the_best_service_is_taken() -> None:
    both = _described((SERVICES[2], "/ppp"), (SERVICES[1], "/ip"), ("urn:other:1", "/other"))
    assert read_description(both, url=URL, host=HOST) == IgdControl(SERVICES[1], "http://192.168.1.1:5000/ip")
    based = _described((SERVICES[0], "ctl?a=1"), base="<URLBase>http://192.168.1.1:80/x/</URLBase>")
    assert read_description(based, url=URL, host=HOST).url == "http://192.168.1.1:80/x/ctl?a=1"
    padded = both + b"\0\r\n"  # some routers send a zero behind it
    assert read_description(padded, url=URL, host=HOST).service == SERVICES[1]


LAUGHS = b'<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><root>&b;</root>'


@pytest.mark.parametrize(
    "data",
    [
        _described(("urn:other:1", "/x")),
        _described((SERVICES[0], "http://10.0.0.1/x")),
        _described((SERVICES[0], "https://192.168.1.1/x")),
        _described((SERVICES[0], "http://[/x")),
        LAUGHS,
        b'<!DOCTYPE r SYSTEM "http://10.0.0.1/x.dtd"><root/>',
        b"<a>" * 40 + b"</a>" * 40,
        b"<r>" + b"<a/>" * 3000 + b"</r>",
        b"<r>" + b" " * (257 << 10) + b"</r>",
        b'<?xml version="1.0" encoding="utf-7"?><r/>',
        b"<r",
        b"",
    ],
)
def test_descriptions_that_are_not_used(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_description(data, url=URL, host=HOST)


def test_a_call() -> None:
    arguments = add_arguments(
        proto="tcp",
        external_port=17430,
        internal_host="192.168.1.10",
        internal_port=17430,
        lifetime=7200,
        name="meshd <garage>",
    )
    headers, body = soap(CONTROL, "AddPortMapping", arguments)
    assert headers["SOAPAction"] == f'"{SERVICES[1]}#AddPortMapping"'
    assert b"<NewPortMappingDescription>meshd &lt;garage&gt;</NewPortMappingDescription>" in body
    assert b"<NewProtocol>TCP</NewProtocol>" in body and b"<NewRemoteHost></NewRemoteHost>" in body


def _enveloped(inner: str) -> bytes:
    return f'<s:Envelope xmlns:s="x"><s:Body>{inner}</s:Body></s:Envelope>'.encode()


def test_what_a_call_returns() -> None:
    good = _enveloped(
        '<u:GetExternalIPAddressResponse xmlns:u="y"><NewExternalIPAddress> 20.1.0.2 </NewExternalIPAddress>'
        "</u:GetExternalIPAddressResponse>"
    )
    assert read_address(read_soap(200, good, "GetExternalIPAddress")) == "20.1.0.2"
    with pytest.raises(RemoteProtocolError, match="does not answer"):
        read_soap(200, good, "AddPortMapping")
    with pytest.raises(RemoteProtocolError, match="status 403"):
        read_soap(403, good, "GetExternalIPAddress")
    for text in ("", "fe80::1", "garage"):
        with pytest.raises(RemoteProtocolError, match="no public address"):
            read_address({"NewExternalIPAddress": text})


def test_a_fault() -> None:
    error = "<UPnPError><errorCode>718</errorCode><errorDescription>Conflict</errorDescription></UPnPError>"
    with pytest.raises(SoapFault, match="Conflict") as caught:
        read_soap(500, _enveloped(f"<s:Fault><detail>{error}</detail></s:Fault>"), "AddPortMapping")
    assert caught.value.number == 718
    with pytest.raises(SoapFault) as caught:
        read_soap(500, _enveloped("<s:Fault/>"), "AddPortMapping")
    assert caught.value.number == 501


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for work in (
        lambda: read_search_answer(_answer(URL)[:30] + data, sender=HOST),
        lambda: read_description(b"<root>" + data + b"</root>", url=URL, host=HOST),
        lambda: read_soap(500, data, "AddPortMapping"),
    ):
        try:
            work()
        except RemoteProtocolError:
            continue


@given(st.text(max_size=60))
def test_any_url_is_at_the_host_or_refused(text: str) -> None:
    try:
        at_address("http://" + text, HOST)
    except RemoteProtocolError:
        return
    assert HOST in text


HEAD = b"HTTP/1.1 200 OK\r\nServer: router\r\nserver: second\r\n"


def _parse(data: bytes, *cuts: int, most: int = 4096) -> HttpReply:
    parser, at = ReplyParser(most=most), 0
    for cut in (*sorted(cut for cut in cuts if cut < len(data)), len(data)):
        parser.feed(data[at:cut])
        at = cut
    return parser.eof()


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=8), st.sampled_from(["length", "end"]))
def test_a_body(body: bytes, cuts: list[int], how: str) -> None:
    length = f"Content-Length: {len(body)}\r\n".encode() if how == "length" else b""
    reply = _parse(HEAD + length + b"\r\n" + body, *cuts)
    assert (reply.status, reply.body, reply.headers["server"]) == (200, body, "router")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_chunks(chunks: list[bytes], cuts: list[int]) -> None:
    written = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + written + b"0\r\n\r\n"
    assert _parse(data, *cuts).body == b"".join(chunks)


def test_bare_line_feeds_and_a_word_before() -> None:
    reply = _parse(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 500 Internal\nContent-Length: 2\n\nok rest")
    assert (reply.status, reply.body) == (500, b"ok")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 abc\r\n\r\n",
        HEAD + b"Content-Length: 10\r\n\r\nshort",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 100,
        HEAD + b"\r\n" + b"x" * 5000,
        b"x" * 20_000,
        HEAD,
        b"",
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        _parse(data)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_a_reply_or_refused(data: bytes, cut: int) -> None:
    try:
        assert len(_parse(HEAD + data, cut, most=100).body) <= 100
    except RemoteProtocolError:
        pass
