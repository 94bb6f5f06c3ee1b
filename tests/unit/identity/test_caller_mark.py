"""The mark of a caller: found in a real ClientHello, whole or in pieces, and nowhere else."""

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import MeshId
from meshd.identity.proof import MARK_NONCE_BYTES, caller_mark, has_caller_mark

from tests.unit.identity.cast import FOUNDER, MESH, WORKER

NONCES = st.binary(min_size=MARK_NONCE_BYTES, max_size=MARK_NONCE_BYTES)


def client_hello(name: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@given(NONCES)
def test_a_listener_finds_the_mark_that_is_meant_for_it(nonce: bytes) -> None:
    hello = client_hello(caller_mark(MESH, WORKER.peer, nonce))
    assert has_caller_mark(hello, MESH, WORKER.peer)
    assert not has_caller_mark(hello, MESH, FOUNDER.peer)
    assert not has_caller_mark(hello, MeshId(b"o" * 32), WORKER.peer)


def test_a_hello_that_is_cut_off_before_the_end_of_the_mark_has_none() -> None:
    mark = caller_mark(MESH, WORKER.peer, bytes(MARK_NONCE_BYTES))
    hello = client_hello(mark)
    end = hello.index(mark.encode()) + len(mark)
    assert [has_caller_mark(hello[:size], MESH, WORKER.peer) for size in (end - 1, end)] == [False, True]


@pytest.mark.parametrize("name", ["a" * 32, "1" * 32, "meshd.test"])
def test_other_names_are_no_mark(name: str) -> None:
    assert not has_caller_mark(client_hello(name), MESH, WORKER.peer)


@given(NONCES, st.integers(0, 31), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567.-_"))
def test_a_mark_with_a_changed_character_is_none(nonce: bytes, at: int, other: str) -> None:
    mark = caller_mark(MESH, WORKER.peer, nonce)
    changed = client_hello("a" * 32).replace(b"a" * 32, (mark[:at] + other + mark[at + 1 :]).encode())
    assert has_caller_mark(changed, MESH, WORKER.peer) is (mark[at] == other)


@given(st.binary(max_size=4096), st.binary(max_size=64))
def test_any_bytes_are_searched_without_an_error(before: bytes, after: bytes) -> None:
    extension = bytes((0, 0, 0, 37, 0, 35, 0, 0, 32))
    assert not has_caller_mark(before + extension + after, MESH, WORKER.peer)
