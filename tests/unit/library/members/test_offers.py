"""Which models of members a name means."""

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.base.peer_limits import MEMBERS_ASKED
from meshd.identity.keys import KeyPair, PeerId
from meshd.library.members.offers import MemberOffer, ambiguous, askable, digits_of, fitting_offers
from meshd.model.model_name import is_file_name, parse_model_name
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.wire.models import ToldModel

ONE, TWO = b"\x01" * 32, b"\x02" * 32


def offer(
    node: str, *names: str, size: int = 100, files: int = 1, fingerprint: bytes = b"", content: bytes = b""
) -> MemberOffer:
    quant = names[0].rpartition("-")[2]
    told = ToldModel(bytes(16), names, size, files, quant, "llama", fingerprint, content)
    return MemberOffer(KeyPair.from_seed(node.encode().ljust(32, b".")).peer, node, told)


def nodes(text: str, *offers: MemberOffer) -> list[str]:
    return [one.node for one in fitting_offers(parse_model_name(text), offers)]


Q4, Q8 = "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M", "hf:unsloth/GLM-4.7-Flash-GGUF:Q8_0"
GLM = offer("a", "GLM-4.7-Flash-Q4_K_M", Q4)
BIG = offer("b", "GLM-4.7-Flash-Q8_0", Q8, size=200)
OWN = offer("c", "tiny-1b", "ollama:tiny:1b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("glm", ["a"]),
        ("GLM-4.7-flash-q4_k_m.gguf", ["a"]),
        ("mesh:glm-4.7-flash-q8_0", ["b"]),
        ("hf:unsloth/GLM-4.7-Flash-GGUF", ["a"]),
        ("hf:unsloth/glm-4.7-flash-gguf:q8_0", ["b"]),
        ("hf:unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-Q8_0.gguf", ["b"]),
        ("hf:others/GLM-4.7-Flash-GGUF", []),
        ("ollama:tiny:1b", ["c"]),
        ("tiny-1b", ["c"]),
        ("qwen3", []),
    ],
)
def test_a_name(text: str, found: list[str]) -> None:
    assert nodes(text, GLM, BIG, OWN) == found


def test_a_fingerprint_or_a_content_id() -> None:
    first, second = offer("a", "x-Q4_0", fingerprint=ONE), offer("b", "y-Q4_0", content=TWO)
    assert nodes("mesh:" + "01" * 16, first, second) == ["a"]
    assert nodes(f"mesh:{TWO.hex()}", first, second) == ["b"]
    assert nodes("mesh:" + "3" * 64, first, second) == []


def test_one_model_in_two_layouts() -> None:
    """Which is taken is decided once it is known what each member really has."""
    whole = [offer(node, "x-Q4_0", size=100, fingerprint=ONE) for node in "ab"]
    parts = offer("c", "x-Q4_0", size=110, files=2, fingerprint=ONE)
    assert nodes("mesh:" + ONE.hex(), parts, *whole) == ["c", "a", "b"]


def test_two_models_of_one_name() -> None:
    for other in (offer("b", "x-Q4_0", size=101), offer("b", "x-Q4_0", fingerprint=TWO)):
        with pytest.raises(
            UserError, match=r"means different models of members: `x-Q4_0` of a .* of b"
        ) as caught:
            nodes("mesh:x-Q4_0", offer("a", "x-Q4_0", fingerprint=ONE), other)
        assert "mesh:FINGERPRINT" in caught.value.hint
    assert nodes("x-Q4_0", offer("a", "x-Q4_0", fingerprint=ONE), offer("b", "x-Q4_0")) == ["a", "b"]


def test_a_content_id_is_left_out_where_it_proves_too_little() -> None:
    offers = [offer("a", "x-Q4_0", content=TWO), offer("b", "x-Q4_0", fingerprint=TWO)]
    name = parse_model_name(f"mesh:{TWO.hex()}")
    assert [one.node for one in fitting_offers(name, offers)] == ["a", "b"]
    assert [one.node for one in fitting_offers(name, offers, by_content=False)] == ["b"]


@given(
    st.sampled_from([ONE.hex(), ONE.hex()[:32], ONE.hex()[:40].upper()]),
    st.lists(st.sampled_from([ONE.hex(), ONE.hex()[:32], "x-Q4_0", "hf:a/b:Q4_0"]), min_size=1, max_size=4),
    st.sampled_from([b"", ONE, TWO]),
    st.sampled_from([b"", ONE, TWO]),
)
def test_digits_are_no_name(digits: str, names: list[str], fingerprint: bytes, content: bytes) -> None:
    """Whatever a member calls its file: only what it tells of fingerprint and content counts."""
    one = offer("a", *names, fingerprint=fingerprint, content=content)
    found = nodes(f"mesh:{digits}", one)
    assert found == (["a"] if ONE in (fingerprint, content) and one.stem else [])
    assert nodes(digits, one) == []


def test_a_member_is_found_by_no_second_name_of_its_file() -> None:
    """Its file would be here under the first one, which nobody has asked for."""
    one = offer("a", "wanted-Q4_0", "nice-Q4_0", "ollama:nice:q4", "ollama:wanted-Q4_0", "hf:a/b:Q4_0")
    assert one.names == ("wanted-Q4_0", "ollama:wanted-Q4_0", "hf:a/b:Q4_0")
    assert nodes("nice-Q4_0", one) == nodes("mesh:nice-Q4_0", one) == nodes("ollama:nice:q4", one) == []
    assert nodes("wanted-Q4_0", one) == nodes("ollama:wanted-Q4_0", one) == ["a"]


@pytest.mark.parametrize(
    "name",
    [
        *["../x", ".x", "a/b", "a\\b", "-rf", "x" * 300, "x" * 201, "ü"],
        *["0123456789", "F" * 64, "a" * 40, "x-00001-of-00002", "mmproj-F16"],
    ],
)
def test_names_that_are_none_for_a_file(name: str) -> None:
    assert offer("a", name).stem == ""
    assert fitting_offers(parse_model_name("hf:a/b"), [offer("a", name, "hf:a/b:Q4_0")]) == []


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=4))
def test_any_words_of_members(text: str, names: list[str]) -> None:
    try:
        name = parse_model_name(text)
    except ValueError:
        return
    for one in fitting_offers(name, [offer("a", *names)]):
        assert is_file_name(one.stem) and "/" not in one.stem


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, " and 1 more"), (11, " and 3 more")])
def test_of_many_different_models_some_are_named(count: int, more: str) -> None:
    offers = [offer(f"n{number}", "x-Q4_0", size=100 + number) for number in range(count)]
    with pytest.raises(UserError) as caught:
        nodes("x-Q4_0", *offers)
    assert caught.value.what.count(" of n") == min(count, 8)
    assert caught.value.what.endswith(more or ")")


def test_the_digits_of_a_model_are_its_fingerprint_or_else_its_content() -> None:
    both = offer("a", "x-Q4_0", fingerprint=ONE, content=TWO)
    assert digits_of(both.model) == ONE.hex()
    assert digits_of(offer("a", "x-Q4_0", content=TWO).model) == TWO.hex()
    assert digits_of(offer("a", "x-Q4_0").model) == ""
    for by_content, found in ((True, [both]), (False, [])):
        name = parse_model_name(f"mesh:{TWO.hex()}")
        assert fitting_offers(name, [both], by_content=by_content) == found
    text = str(ambiguous("x", [both, offer("b", "x-Q4_0")]))
    assert ONE.hex()[:32] in text and "of b (100 B)" in text


class Present:
    """A mesh of peers in given states."""

    def __init__(self, *peers: PeerStatus) -> None:
        self._peers = peers

    def peers(self) -> Sequence[PeerStatus]:
        return self._peers


def test_members_that_are_present_are_asked_the_connected_ones_first() -> None:
    def status(number: int, state: PeerState, *, present: bool = False) -> PeerStatus:
        return PeerStatus(PeerId(number.to_bytes(32)), state=state, present=present)

    lost, known = status(1, PeerState.LOST), status(2, PeerState.KNOWN)
    there, here = status(3, PeerState.KNOWN, present=True), status(4, PeerState.CONNECTED)
    assert askable(cast(Mesh, Present(lost, known, there, here))) == [here, there]
    many = [status(number, PeerState.KNOWN, present=True) for number in range(10, 10 + MEMBERS_ASKED.most)]
    asked = askable(cast(Mesh, Present(*many, here)))
    assert asked == [here, *many[:-1]]
