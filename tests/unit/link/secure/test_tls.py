"""The TLS engine over memory: what goes in comes out, and nothing but declared errors for anything else."""

import functools
import hashlib
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.identity.tls_certificate import LinkCertificate, make_link_certificate
from meshd.link.secure.tls import RECORD_BYTES, TlsEngine, dialer_context, listener_context


@functools.cache
def certificate() -> LinkCertificate:
    return make_link_certificate()


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return dialer_context(), listener_context(certificate())


def fresh() -> tuple[TlsEngine, TlsEngine]:
    dialer, listener = contexts()
    return TlsEngine(dialer, server_side=False), TlsEngine(listener, server_side=True)


def shaken() -> tuple[TlsEngine, TlsEngine]:
    near, far = fresh()
    done = [False, False]
    for _ in range(5):
        done[0] = near.advance()
        far.feed(near.outgoing())
        done[1] = far.advance()
        near.feed(far.outgoing())
    assert done == [True, True]
    return near, far


def read_all(engine: TlsEngine, *, space: int = 5000) -> bytes:
    buffer = memoryview(bytearray(space))
    got = b""
    while count := engine.unseal(buffer):
        got += buffer[:count]
    return got


def test_the_binding_is_the_hash_of_the_certificate_shown() -> None:
    near, far = shaken()
    assert near.binding() == certificate().sha256 == hashlib.sha256(certificate().der).digest()
    with pytest.raises(RemoteProtocolError):
        far.binding()  # no certificate is asked of the dialler


def test_every_certificate_is_another() -> None:
    assert make_link_certificate().sha256 != certificate().sha256
    assert certificate().key_pem.decode() not in repr(certificate())


pieces_of_any_size = st.lists(
    st.one_of(
        st.binary(max_size=40), st.integers(0, 70_000).map(lambda size: bytes(size % 251 for _ in [0]) * size)
    ),
    max_size=12,
)


@given(pieces_of_any_size, st.integers(1, 40_000))
@settings(deadline=None)
def test_pieces_come_out_in_order(pieces: list[bytes], space: int) -> None:
    near, far = shaken()
    sealed = near.seal([piece if at % 2 else memoryview(piece) for at, piece in enumerate(pieces)])
    middle = len(sealed) // 2
    far.feed(sealed[:middle])
    got = read_all(far, space=space)
    far.feed(sealed[middle:])
    got += read_all(far, space=space)
    assert got == b"".join(pieces)


def test_small_pieces_share_a_record() -> None:
    near, _ = shaken()
    assert len(near.seal([b"x"] * 100)) < 200


@pytest.mark.parametrize("sizes", [(21, 16384), (21, 262144), (16000, 21, 40000), (16384, 21, 16384, 21)])
def test_every_record_but_the_last_is_full(sizes: tuple[int, ...]) -> None:
    near, far = shaken()
    near.seal([b""])
    pieces = [bytes([at]) * size for at, size in enumerate(sizes)]
    sealed = near.seal(pieces)
    records = -(-sum(sizes) // RECORD_BYTES)
    assert len(sealed) == sum(sizes) + 22 * records
    far.feed(sealed)
    assert read_all(far) == b"".join(pieces)


def test_part_of_a_record_need_not_be_asked_for_twice() -> None:
    near, far = shaken()
    space = memoryview(bytearray(5000))
    sealed = near.seal([b"y" * 1000]) + near.seal([b"z" * 1000])
    far.feed(sealed[:-1])
    assert far.unseal(space) == 1000
    assert far.drained
    far.feed(sealed[-1:])
    assert far.unseal(space) == 1000
    assert far.drained


def test_a_goodbye_comes_behind_the_data() -> None:
    near, far = shaken()
    sealed = near.seal([b"last"])
    near.finish()
    far.feed(sealed + near.outgoing())
    space = memoryview(bytearray(100))
    assert bytes(space[: far.unseal(space)]) == b"last"
    for _ in range(2):
        with pytest.raises(EndOfStream):
            far.unseal(space)
    far.finish()
    assert far.outgoing()


@given(st.binary(min_size=1, max_size=300))
@settings(deadline=None)
def test_whatever_a_dialler_says_first(data: bytes) -> None:
    _, far = fresh()
    far.feed(data)
    try:
        assert not far.advance()
    except RemoteProtocolError as error:
        assert error.code == "tls"
    far.outgoing()


@given(st.binary(min_size=1, max_size=300))
@settings(deadline=None)
def test_whatever_a_listener_answers(data: bytes) -> None:
    near, _ = fresh()
    near.advance()
    near.feed(data)
    try:
        assert not near.advance()
    except RemoteProtocolError as error:
        assert error.code == "tls"


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(deadline=None)
def test_a_changed_byte_is_found(at: int, change: int) -> None:
    near, far = shaken()
    sealed = bytearray(near.seal([b"weights" * 100]))
    sealed[at % len(sealed)] ^= change
    far.feed(bytes(sealed))
    try:
        assert read_all(far) == b""  # the length became larger: it waits for more
    except RemoteProtocolError as error:
        assert error.code == "tls"


def test_a_cut_record_waits() -> None:
    near, far = shaken()
    sealed = near.seal([b"y" * 1000])
    far.feed(sealed[:-1])
    assert read_all(far) == b""
    far.feed(sealed[-1:])
    assert read_all(far) == b"y" * 1000
