"""A proof of an API key is of use with one head, from one member, for that key."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import PeerId
from meshd.identity.proof import MAX_PROOFS, PROOF_BYTES, key_digest, prove_key, proven_key

HEAD, OTHER, MEMBER = (PeerId(bytes([number]) * 32) for number in range(3))
KEYS = tuple(key_digest(f"secret number {number}") for number in range(3))


def test_a_head_finds_which_of_its_keys_was_shown() -> None:
    for key in KEYS:
        proof = prove_key(key, head=HEAD, member=MEMBER)
        assert proven_key(proof, KEYS, head=HEAD, member=MEMBER) == key


def test_a_proof_tells_nothing_of_use_elsewhere() -> None:
    proof = prove_key(KEYS[0], head=HEAD, member=MEMBER)
    assert proof != KEYS[0]
    assert proven_key(proof, KEYS, head=OTHER, member=MEMBER) is None
    assert proven_key(proof, KEYS, head=HEAD, member=OTHER) is None
    assert proven_key(proof, KEYS[1:], head=HEAD, member=MEMBER) is None


def test_two_keys_of_one_request_are_looked_at_and_no_more() -> None:
    wrong = prove_key(key_digest("another"), head=HEAD, member=MEMBER)
    right = prove_key(KEYS[1], head=HEAD, member=MEMBER)
    assert proven_key(wrong + right, KEYS, head=HEAD, member=MEMBER) == KEYS[1]
    assert proven_key(wrong * MAX_PROOFS + right, KEYS, head=HEAD, member=MEMBER) is None


@given(st.binary(max_size=5 * PROOF_BYTES))
def test_bytes_of_any_length_prove_nothing(proofs: bytes) -> None:
    assert proven_key(proofs, KEYS, head=HEAD, member=MEMBER) is None
