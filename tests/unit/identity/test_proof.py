"""The proof: who gets through, and each way of not getting through; marks of callers, proofs of API keys."""

import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, MeshdError, Refused, RemoteProtocolError
from meshd.identity.invite import derive
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import ALL_ROLES, Chain, Role
from meshd.identity.proof import (
    MAGIC,
    MARK_NONCE_BYTES,
    MAX_PROOFS,
    PROOF_BYTES,
    DialProof,
    ListenProof,
    ProofFailed,
    Purpose,
    caller_mark,
    frame,
    has_caller_mark,
    key_digest,
    prove_key,
    proven_key,
)
from meshd.identity.revocation import RevocationSet, ban
from meshd.wire.limits import MAX_UNPROVEN_BYTES
from meshd.wire.versions import OLDEST_WIRE_VERSION, WIRE_VERSION

from tests.unit.identity.cast import (
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    MESH,
    ROOT,
    STRANGER,
    WORKER,
    WORKER_CHAIN,
    certificate,
)
from tests.unit.identity.ends import BINDING, KEYS, converse, dialler, joiner, listener, message, proven


def refused_by_listener(dial: DialProof, listen: ListenProof, code: str) -> ProofFailed:
    """The listener refuses with `code`, and the dialler hears that very refusal."""
    with pytest.raises(ProofFailed) as caught:
        converse(dial, listen)
    assert caught.value.code == code
    assert listen.result is None
    with pytest.raises(Refused) as heard:
        dial.receive(caught.value.farewell)
    assert heard.value.code == code
    assert heard.value.what == caught.value.what
    assert heard.value.hint == caught.value.hint
    assert dial.result is None
    return caught.value


def refused_by_dialler(dial: DialProof, listen: ListenProof, code: str) -> ProofFailed:
    """The same the other way round."""
    with pytest.raises(ProofFailed) as caught:
        converse(dial, listen)
    assert caught.value.code == code
    assert dial.result is None
    with pytest.raises(Refused) as heard:
        listen.receive(caught.value.farewell)
    assert heard.value.code == code
    assert listen.result is None
    return caught.value


def without_chain(proof: bytes) -> bytes:
    """The same message with the chain under a name that means nothing."""
    assert b"\xa5chain" in proof
    return proof.replace(b"\xa5chain", b"\xa5chaim")


def test_two_members_prove_each_other() -> None:
    seen_by_dialler, seen_by_listener = proven(dialler(), listener())
    assert seen_by_dialler.peer == FOUNDER.peer
    assert seen_by_dialler.member is not None
    assert seen_by_dialler.member.roles == ALL_ROLES
    assert seen_by_listener.peer == GUEST.peer
    assert seen_by_listener.member is not None
    assert seen_by_listener.member.roles == {Role.USE}
    assert seen_by_listener.purpose is Purpose.MEMBER
    assert seen_by_listener.invite_id is None


def test_a_joiner_proves_the_secret_and_the_inviter_its_key() -> None:
    seen_by_joiner, seen_by_inviter = proven(joiner(), listener())
    assert seen_by_inviter.peer == GUEST.peer
    assert seen_by_inviter.member is None
    assert seen_by_inviter.invite_id == KEYS.invite_id
    assert seen_by_joiner.member is not None
    assert seen_by_joiner.member.peer == FOUNDER.peer


def test_a_relay_takes_members_of_any_mesh_and_strangers_without_a_chain() -> None:
    relays = frozenset({Purpose.RELAY})
    for chain in (GUEST_CHAIN, None):
        dial = dialler(chain=chain, purpose=Purpose.RELAY, expect=WORKER.peer)
        listen = listener(key=WORKER, chain=None, mesh=None, purposes=relays)
        by_dialler, by_relay = proven(dial, listen)
        assert by_dialler.member is None
        assert by_relay.purpose is Purpose.RELAY
        assert (by_relay.member is None) == (chain is None)


def test_one_byte_at_a_time_is_enough_and_what_follows_is_left_over() -> None:
    dial, listen = dialler(), listener()
    outgoing = dial.start()
    while dial.result is None:
        answer = b"".join(listen.receive(outgoing[at : at + 1]) for at in range(len(outgoing)))
        outgoing = b"".join(dial.receive(answer[at : at + 1]) for at in range(len(answer)))
    listen.receive(outgoing + b"first data")
    assert listen.result is not None
    assert listen.result.leftover == b"first data"
    assert dial.result.leftover == b""


def test_data_right_behind_the_listeners_proof_is_left_over() -> None:
    dial, listen = dialler(), listener()
    proof = dial.receive(listen.receive(dial.start()))
    dial.receive(listen.receive(proof) + b"x" * 100_000)
    assert dial.result is not None
    assert dial.result.leftover == b"x" * 100_000


def test_all_that_is_said_before_a_proof_fits_the_limit() -> None:
    for dial in (dialler(), joiner()):
        talk = converse(dial, listener())
        assert sum(map(len, talk.dialled)) < MAX_UNPROVEN_BYTES
        assert sum(map(len, talk.listened)) < MAX_UNPROVEN_BYTES


# -- refusals by the listener


SELF_MADE = Chain((certificate(STRANGER, STRANGER, ALL_ROLES),), ROOT.peer)


@pytest.mark.parametrize(
    ("dial", "code"),
    [
        (lambda: dialler(expect=STRANGER.peer), "target"),
        (lambda: dialler(mesh=MeshId.of(STRANGER.peer)), "mesh"),
        (lambda: dialler(purpose=Purpose.RELAY), "purpose"),
        (lambda: dialler(key=FOUNDER, chain=FOUNDER_CHAIN), "self"),
        (lambda: dialler(key=STRANGER), "chain"),
        (lambda: dialler(key=STRANGER, chain=SELF_MADE), "chain"),
    ],
)
def test_who_is_somebody_else_or_elsewhere_is_refused(dial: Callable[[], DialProof], code: str) -> None:
    refused_by_listener(dial(), listener(), code)


def test_an_unknown_invite_and_a_wrong_secret_are_refused_alike() -> None:
    other = derive(b"another secret16")
    unknown = refused_by_listener(joiner(join=other), listener(), "unknown")
    guessed = replace(other, invite_id=KEYS.invite_id)
    wrong = refused_by_listener(joiner(join=guessed), listener(), "unknown")
    assert unknown.what == wrong.what


def test_a_banned_member_is_refused_also_with_a_backdated_certificate() -> None:
    bans = RevocationSet(MESH)
    bans.add(
        ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=WORKER.peer.raw, issued_at=4_000_000_000)
    )
    backdated = Chain((certificate(ROOT, WORKER, ALL_ROLES, issued_at=0),), ROOT.peer)
    for chain in (WORKER_CHAIN, backdated):
        error = refused_by_listener(
            dialler(key=WORKER, chain=chain), listener(why_banned=bans.why_banned), "banned"
        )
        assert "`meshd unban`" in error.hint and "new key" in error.hint


def test_a_banned_key_does_not_join_again() -> None:
    bans = RevocationSet(MESH)
    bans.add(ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=GUEST.peer.raw, issued_at=1))
    error = refused_by_listener(joiner(), listener(why_node_banned=bans.why_node_banned), "banned")
    assert "is banned from this mesh" in error.what and "`meshd unban`" in error.hint
    proven(joiner(key=STRANGER), listener(why_node_banned=bans.why_node_banned))


def test_a_member_without_a_chain_is_refused() -> None:
    dial, listen = dialler(), listener()
    proof = dial.receive(listen.receive(dial.start()))
    with pytest.raises(ProofFailed) as caught:
        listen.receive(without_chain(proof))
    assert caught.value.code == "chain"


def greeting(low: int, high: int, to: KeyPair, *, later: bool = False) -> bytes:
    """Return GUEST's first message with these versions; `later`: and with a field that is not known yet."""
    extra = {"later": True} if later else {}
    return message(
        t="hi",
        lo=low,
        hi=high,
        purpose="member",
        mesh=MESH.raw,
        to=to.peer.raw,
        nonce=bytes(32),
        **{"from": GUEST.peer.raw},
        **extra,
    )


@pytest.mark.parametrize(
    ("versions", "spoken", "older"),
    [((2, 3), "2 to 3", FOUNDER), ((2, 2), "2", FOUNDER), ((0, 0), "0", GUEST)],
)
def test_versions_that_do_not_meet_are_refused_and_the_older_node_is_named(
    versions: tuple[int, int], spoken: str, older: KeyPair
) -> None:
    low, high = versions
    hi = greeting(low, high, FOUNDER)
    with pytest.raises(ProofFailed) as caught:
        listener().receive(MAGIC + hi)
    guest, founder = GUEST.peer.short, FOUNDER.peer.short
    what = f"node {guest} speaks version {spoken} of meshd's protocol, node {founder} version 1"
    hint = f"run `meshd upgrade` on node {older.peer.short}, whose meshd is older"
    assert (caught.value.code, caught.value.what, caught.value.hint) == ("version", what, hint)
    with pytest.raises(Refused) as told:  # and the dialler hears the same
        dialler().receive(caught.value.farewell)
    assert (told.value.code, told.value.what, told.value.hint) == ("version", what, hint)


def test_of_another_version_who_seeks_another_node_does_not_learn_which_is_here() -> None:
    hi = greeting(2, 2, GUEST)
    with pytest.raises(ProofFailed) as caught:
        listener().receive(MAGIC + hi)
    assert caught.value.code == "target" and FOUNDER.peer.short not in caught.value.what


def test_neighbouring_versions_of_the_protocol_meet() -> None:
    assert WIRE_VERSION - 1 <= OLDEST_WIRE_VERSION <= WIRE_VERSION


def test_a_dialler_of_a_later_version_is_met_at_ours() -> None:
    hi = greeting(1, 7, FOUNDER, later=True)
    dial = dialler()
    dial.receive(listener().receive(MAGIC + hi))  # the answer names version 1


# -- refusals by the dialler


def test_a_listener_with_a_foreign_chain_is_refused() -> None:
    refused_by_dialler(dialler(), listener(chain=WORKER_CHAIN), "chain")


def test_a_listener_that_the_dialler_knows_as_banned_is_refused() -> None:
    refused_by_dialler(dialler(why_banned=lambda chain: "out"), listener(), "banned")


def test_a_listener_without_the_pinned_key_is_refused() -> None:
    # it claims to be the founder but holds another key
    dial = dialler()
    impostor = listener(key=STRANGER)
    hi = dialler(expect=STRANGER.peer).start()
    proof = dial.receive(impostor.receive(hi))
    with pytest.raises(ProofFailed, match="signature"):
        impostor.receive(proof)
    with pytest.raises(ProofFailed) as caught:
        dial.receive(message(t="proof", sig=bytes(64), chain=FOUNDER_CHAIN.encode()))
    assert caught.value.code == "signature"


def test_a_listener_without_a_chain_is_refused() -> None:
    dial, listen = dialler(), listener()
    proof = listen.receive(dial.receive(listen.receive(dial.start())))
    with pytest.raises(ProofFailed) as caught:
        dial.receive(without_chain(proof))
    assert caught.value.code == "chain"


# -- attacks


@pytest.mark.parametrize("dial_with", [dialler, joiner])
def test_a_man_in_the_middle_who_forwards_the_proof_fails(dial_with: Callable[..., DialProof]) -> None:
    # the dialler sees his certificate, the listener its own: all messages are forwarded unchanged
    dial, listen = dial_with(binding=b"m" * 32), listener(binding=BINDING)
    error = refused_by_listener(dial, listen, "signature")
    assert "man in the middle" in error.hint


def test_a_man_in_the_middle_cannot_prove_the_listener_either() -> None:
    # he lets the dialler's side succeed on his own and forwards the listener's proof of another session
    dial = dialler(binding=b"m" * 32)
    recorded = converse(dialler(), listener()).listened
    dial.receive(recorded[0])
    with pytest.raises(ProofFailed) as caught:
        dial.receive(recorded[1])
    assert caught.value.code == "signature"


@pytest.mark.parametrize(
    ("fresh", "recorded"),
    [
        (lambda: listener(nonce=b"n" * 32), lambda: converse(dialler(), listener()).dialled),
        (lambda: listener(nonce=b"n" * 32), lambda: converse(joiner(), listener()).dialled),
        (lambda: dialler(nonce=b"n" * 32), lambda: converse(dialler(), listener()).listened),
    ],
    ids=["a dialler's", "a joiner's", "a listener's"],
)
def test_a_recorded_proof_is_of_no_use_again(
    fresh: Callable[[], DialProof | ListenProof], recorded: Callable[[], Sequence[bytes]]
) -> None:
    first, second = recorded()[:2]
    side = fresh()
    side.receive(first)
    with pytest.raises(ProofFailed) as caught:
        side.receive(second)
    assert caught.value.code == "signature"


def test_a_proof_is_not_reflected() -> None:
    # what the dialler signed is no signature of a listener, even where it looks for its own key
    dial = dialler(key=FOUNDER, chain=FOUNDER_CHAIN, expect=FOUNDER.peer)
    signed = dial.receive(message(t="answer", version=1, nonce=bytes(32)))
    with pytest.raises(ProofFailed) as caught:
        dial.receive(signed)
    assert caught.value.code == "signature"


def test_versions_cannot_be_changed_on_the_way() -> None:
    dial, listen = dialler(), listener()
    hi = dial.start()
    lowered = hi.replace(b"\xa2lo\x01", b"\xa2lo\x00")
    assert lowered != hi
    with pytest.raises(ProofFailed) as caught:
        listen.receive(dial.receive(listen.receive(lowered)))
    assert caught.value.code == "signature"


def test_what_the_driver_gets_wrong_is_a_local_error() -> None:
    for make in (
        lambda: dialler(nonce=b"short"),
        lambda: dialler(binding=b""),
        lambda: dialler(chain=None),
        lambda: dialler(join=KEYS),
        lambda: dialler(purpose=Purpose.JOIN),
        lambda: listener(chain=None),
        lambda: listener(mesh=None),
    ):
        with pytest.raises(LocalProtocolError):
            make()


def test_a_failed_proof_is_both_a_remote_error_and_a_meshd_error() -> None:
    error = ProofFailed("what", code="code")
    assert isinstance(error, RemoteProtocolError)
    assert isinstance(error, MeshdError)
    assert error.farewell == b""


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"MESHX", b"M\0"])
def test_a_stranger_is_told_nothing(start: bytes) -> None:
    with pytest.raises(ProofFailed) as caught:
        listener().receive(start)
    assert caught.value.code == "magic"
    assert caught.value.farewell == b""


def test_the_magic_may_come_in_pieces() -> None:
    listen = listener()
    for at in range(len(MAGIC)):
        assert listen.receive(MAGIC[at : at + 1]) == b""
    assert listen.receive(dialler().start()[len(MAGIC) :])


def test_a_message_over_the_budget_is_refused_at_its_header() -> None:
    listen = listener()
    with pytest.raises(ProofFailed) as caught:
        listen.receive(MAGIC + (MAX_UNPROVEN_BYTES + 1).to_bytes(2, "big"))
    assert caught.value.code == "too_long"
    assert caught.value.farewell


def test_the_budget_counts_all_messages_together() -> None:
    dial = dialler()
    talk = converse(dialler(), listener())
    padding = bytes(2500)
    first = message(t="answer", version=1, nonce=b"l" * 32, padding=padding)
    dial.receive(first)
    second = message(t="proof", sig=bytes(64), padding=padding)
    assert talk.listened
    with pytest.raises(ProofFailed) as caught:
        dial.receive(second)
    assert caught.value.code == "too_long"


def test_messages_out_of_order_are_refused() -> None:
    with pytest.raises(ProofFailed) as caught:
        listener().receive(MAGIC + message(t="done"))
    assert caught.value.code == "proof"
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(message(t="proof", sig=bytes(64)))
    assert caught.value.code == "proof"


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x80"])
def test_a_message_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(len(body).to_bytes(2, "big") + body)
    assert caught.value.code == "message"


def test_a_refusal_is_handed_on_with_code_text_and_hint() -> None:
    with pytest.raises(Refused) as caught:
        dialler().receive(message(t="refused", code="later", text="not today", hint="come back"))
    assert (caught.value.code, caught.value.what, caught.value.hint) == ("later", "not today", "come back")


@pytest.mark.parametrize("text", ["x" * 2000, "two\nlines", "\x1b[31m"])
def test_a_refusal_with_an_unfit_text_is_refused_itself(text: str) -> None:
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(message(t="refused", code="later", text=text, hint=""))
    assert caught.value.code == "message"


def test_a_long_reason_is_cut_so_that_the_other_side_can_read_it() -> None:
    dial, listen = dialler(), listener(why_banned=lambda chain: "ä\n" * 2000)
    with pytest.raises(ProofFailed) as caught:
        converse(dial, listen)
    with pytest.raises(Refused) as heard:
        dial.receive(caught.value.farewell)
    assert heard.value.what.startswith("ä?ä?")


def test_after_the_end_nothing_is_taken() -> None:
    dial, listen = dialler(), listener()
    converse(dial, listen)
    for end in (dial, listen):
        with pytest.raises(LocalProtocolError):
            end.receive(b"more")


def test_after_a_failure_nothing_is_taken() -> None:
    refused, failed = dialler(), listener()
    with pytest.raises(Refused):
        refused.receive(message(t="refused", code="c", text="t", hint=""))
    with pytest.raises(ProofFailed):
        failed.receive(b"GET")
    for end in (refused, failed):
        with pytest.raises(LocalProtocolError):
            end.receive(b"more")


def test_our_own_messages_are_bounded() -> None:
    with pytest.raises(LocalProtocolError):
        frame({"x": bytes(MAX_UNPROVEN_BYTES)})


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


HEAD, OTHER, MEMBER = (PeerId(bytes([number]) * 32) for number in range(3))
API_KEYS = tuple(key_digest(f"secret number {number}") for number in range(3))


def test_a_head_finds_which_of_its_keys_was_shown() -> None:
    for key in API_KEYS:
        proof = prove_key(key, head=HEAD, member=MEMBER)
        assert proven_key(proof, API_KEYS, head=HEAD, member=MEMBER) == key


def test_a_proof_tells_nothing_of_use_elsewhere() -> None:
    proof = prove_key(API_KEYS[0], head=HEAD, member=MEMBER)
    assert proof != API_KEYS[0]
    assert proven_key(proof, API_KEYS, head=OTHER, member=MEMBER) is None
    assert proven_key(proof, API_KEYS, head=HEAD, member=OTHER) is None
    assert proven_key(proof, API_KEYS[1:], head=HEAD, member=MEMBER) is None


def test_two_keys_of_one_request_are_looked_at_and_no_more() -> None:
    wrong = prove_key(key_digest("another"), head=HEAD, member=MEMBER)
    right = prove_key(API_KEYS[1], head=HEAD, member=MEMBER)
    assert proven_key(wrong + right, API_KEYS, head=HEAD, member=MEMBER) == API_KEYS[1]
    assert proven_key(wrong * MAX_PROOFS + right, API_KEYS, head=HEAD, member=MEMBER) is None


@given(st.binary(max_size=5 * PROOF_BYTES))
def test_bytes_of_any_length_prove_nothing(proofs: bytes) -> None:
    assert proven_key(proofs, API_KEYS, head=HEAD, member=MEMBER) is None
