"""The recovery code: what people do to a line that they type from paper, and what they are told then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.identity.invite import ALPHABET
from meshd.identity.recovery_code import CODE as ARMOUR
from meshd.identity.recovery_code import GROUP_CHARS, read_code, write_code

PREFIX = "meshdroot1"
seeds = st.binary(min_size=32, max_size=32)
CODE = write_code(bytes(range(32)))


def refused(text: str) -> str:
    """Why this is no code."""
    with pytest.raises(UserError, match="cannot read the recovery code: ") as caught:
        read_code(text)
    assert "meshd" in caught.value.hint
    return caught.value.what.removeprefix("cannot read the recovery code: ")


def typed(digits: str) -> str:
    return PREFIX + digits


def digits_of(code: str) -> str:
    return "".join(code.split()).removeprefix(PREFIX)


def place(at: int) -> str:
    return f"character {at % GROUP_CHARS + 1} of group {at // GROUP_CHARS + 1}"


@given(seeds)
def test_it_is_read_back_however_it_is_broken_up(seed: bytes) -> None:
    code = write_code(seed)
    assert code.startswith(f"{PREFIX} ") and set(map(len, code.split()[1:-1])) == {GROUP_CHARS}
    for text in (
        code,
        "".join(code.split()),
        f"\n{code.replace(' ', '-').upper()} ",
        "\n".join(code.split()),
    ):
        assert read_code(text) == seed


def test_a_backup_of_earlier_versions_is_read() -> None:
    code = "meshdroot1aaqaaaicamcakbqhbaequcymbuha6earcijrifiwc4mbsgq3dqor4h4aj6xi4"
    assert read_code(code) == bytes(range(32))


@given(seeds, st.data())
def test_a_wrong_character_is_named_with_the_right_one(seed: bytes, data: st.DataObject) -> None:
    digits = digits_of(write_code(seed))
    at = data.draw(st.integers(0, len(digits) - 1))
    wrong = data.draw(st.sampled_from("0189!éß" + "".join(sorted(ALPHABET - {digits[at]}))))
    why = refused(typed(digits[:at] + wrong + digits[at + 1 :]))
    assert why == f"{place(at)} is `{wrong}`, and must be `{digits[at]}`"


@given(seeds, st.data())
def test_swapped_characters_are_named(seed: bytes, data: st.DataObject) -> None:
    digits = digits_of(write_code(seed))
    at = data.draw(st.sampled_from([at for at in range(len(digits) - 1) if digits[at] != digits[at + 1]]))
    why = refused(typed(digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :]))
    assert why == f"{place(at)} and the next one are swapped"


@given(seeds, st.data())
def test_a_missing_or_additional_character_is_named_by_a_place_that_mends_it(
    seed: bytes, data: st.DataObject
) -> None:
    """In a row of equal characters any of them may be the one."""
    digits = digits_of(write_code(seed))
    at = data.draw(st.integers(0, len(digits) - 1))
    why = refused(typed(digits[:at] + digits[at + 1 :]))
    assert why.endswith(f", `{digits[at]}`, is missing")
    assert any(why.startswith(place(near)) for near in range(at + 1) if set(digits[near:at]) <= {digits[at]})
    more = data.draw(st.sampled_from("0189" + "".join(sorted(ALPHABET))))
    longer = digits[:at] + more + digits[at:]
    why = refused(typed(longer))
    assert why.endswith(f", `{more}`, is too many")
    assert any(why.startswith(place(near)) for near in range(at + 1) if set(longer[near:at]) <= {more})


def test_several_mistakes_are_located_as_far_as_possible() -> None:
    digits = digits_of(CODE)
    zeros = typed("0" + digits[1:6] + "1" + digits[7:])
    assert (
        refused(zeros)
        == "character 1 of group 1 is `0`, character 3 of group 2 is `1`, which no code contains"
    )
    swapped = "".join("b" if char == "a" else char for char in digits[:30]) + digits[30:]
    assert "at least two characters are wrong" in refused(typed(swapped))
    assert "truncated (5 characters missing)" in refused(typed(digits[:-5]))
    assert "5 characters too many" in refused(typed(digits + "aaaaa"))


def test_other_words_are_no_code() -> None:
    assert "it is empty" in refused(" \n")
    assert "does not begin with `meshdroot1`" in refused("meshd1abc")
    assert "made by a newer version" in refused("meshdroot2abc")
    assert "has 5000 characters" in refused("a" * 5000)


@given(st.text(max_size=200) | st.text(alphabet="".join(sorted(ALPHABET)), max_size=80).map(typed))
def test_any_text_is_refused_in_words_without_showing_what_may_be_secret(text: str) -> None:
    why = refused(text)
    secret = "".join(text.lower().split())[len(PREFIX) :]
    assert not any(secret[at : at + 5] in why for at in range(len(secret) - 4) if secret.isascii())


def test_a_word_of_another_length_is_no_code() -> None:
    assert refused(ARMOUR.write(bytes(31))) == "its length is wrong"
