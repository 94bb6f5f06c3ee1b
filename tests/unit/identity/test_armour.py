"""Armour: the word survives chats and shells; each kind of damage has its own message."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.identity.invite import MAX_PASTED_CHARS, Armour

from tests.unit.identity.cast import thorough

WORD = Armour(what="test word", stem="meshd", version=1, remedy="copy it again")
PAYLOAD = bytes(range(60))
TEXT = WORD.write(PAYLOAD)


@given(st.binary(max_size=200))
@thorough
def test_a_payload_is_read_back(payload: bytes) -> None:
    word = WORD.write(payload)
    assert re.fullmatch("meshd1[a-z2-7]+", word)
    assert len(word) == WORD.overhead_chars(len(payload))
    assert WORD.read(word) == payload


@pytest.mark.parametrize(
    "pasted",
    [
        f"  {TEXT}\n",
        TEXT.upper(),
        f'"{TEXT}"',
        f"`{TEXT}`",
        f"“{TEXT}”",
        f"<{TEXT}>.",
        "\r\n".join(TEXT[at : at + 20] for at in range(0, len(TEXT), 20)),
        "\u200b".join(TEXT),
        f"\ufeff{TEXT[:30]}\u00a0{TEXT[30:]}",
        f"*{TEXT}*,",
    ],
)
def test_what_chats_do_is_forgiven(pasted: str) -> None:
    assert WORD.read(pasted) == PAYLOAD


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("hello", "does not begin with `meshd1`"),
        (TEXT[1:], "does not begin with `meshd1`"),
        ("meshd", "cut off"),
        ("meshd2" + TEXT[6:], "newer version"),
        ("meshd9", "newer version"),
        ("meshda" + TEXT[6:], "begins with `meshda`"),
        (TEXT[:6], "truncated"),
        (TEXT[:9], "truncated"),
        (TEXT[:-1], "1 character missing"),
        (TEXT[:-7], "7 characters missing"),
        (TEXT + "a", "1 character too many"),
        (TEXT + TEXT, "too many|is not allowed"),
        (TEXT[:8] + "q" + TEXT[9:], "or a character of its beginning is damaged"),
        (TEXT[:20] + "0" + TEXT[21:], "character 21, `0`"),
        (TEXT[:20] + "é" + TEXT[21:], "character 21, `é`"),
        (TEXT[:20] + ("b" if TEXT[20] == "a" else "a") + TEXT[21:], "checksum"),
        ("meshd1" + "7777" + TEXT[10:], "first characters are damaged"),
        ("x" * (MAX_PASTED_CHARS + 1), "this is not one"),
    ],
)
def test_each_kind_of_damage_is_named(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        WORD.read(text)
    assert caught.value.hint
    assert TEXT[20:40] not in caught.value.what + caught.value.hint


@given(st.integers(0, len(TEXT) - 1), st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789"))
@thorough
def test_any_single_changed_character_is_found(place: int, char: str) -> None:
    changed = TEXT[:place] + char + TEXT[place + 1 :]
    if changed == TEXT:
        assert WORD.read(changed) == PAYLOAD
    else:
        with pytest.raises(UserError):
            WORD.read(changed)


@given(st.integers(6, len(TEXT) - 2))
@thorough
def test_two_swapped_characters_are_found(place: int) -> None:
    swapped = TEXT[:place] + TEXT[place + 1] + TEXT[place] + TEXT[place + 2 :]
    if swapped != TEXT:
        with pytest.raises(UserError):
            WORD.read(swapped)


def test_a_word_of_another_kind_is_refused() -> None:
    other = Armour(what="other", stem="meshdother", version=1, remedy="")
    with pytest.raises(UserError):
        WORD.read(other.write(PAYLOAD))
    with pytest.raises(UserError):
        other.read(TEXT)
