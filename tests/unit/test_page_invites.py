"""The page from anywhere reads invites as meshd does, and says what is wrong with one in the same words."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.identity.invite import TOKEN, Invite, encode_token, parse_token
from meshd.identity.keys import MeshId, PeerId

from tests.page_scripts import needs_typescript, page_script

pytestmark = [needs_typescript, pytest.mark.timeout(180)]
WHOLE = encode_token(Invite(MeshId(b"m" * 32), PeerId(b"p" * 32), b"s" * 16, 1_800_000_000))
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_SCRIPT = """
import { readFileSync } from 'node:fs';
import { readInvite } from './remote/invite.js';
const read = (text) => {
    try {
        return readInvite(text, new Uint8Array(32)).expiresAt;
    } catch (error) {
        return error.message;
    }
};
console.log(JSON.stringify(JSON.parse(readFileSync(0, 'utf-8')).map(read)));
"""


def by_meshd(text: str) -> int | str:
    try:
        return parse_token(text).expires_at
    except UserError as error:
        return error.what


def agree(pasted: list[str]) -> list[Any]:
    """Assert that both say the same of each; return what they say."""
    found: list[Any] = page_script(_SCRIPT, pasted)
    assert found == [by_meshd(text) for text in pasted]
    return found


def test_each_fault_has_the_words_of_the_command_line() -> None:
    fields = bytes([0x81, 32]) + b"m" * 32
    pasted = [
        *("", "   ", "hello", "mesh", "meshd", "meshdx", "meshd2abc", "meshdreply1abc", "meshdroot1abc"),
        *("meshd1", "meshd1ab", "meshd1abcde", "meshd17777777", "meshd1aa-a", "meshd1é", "x" * 5000),
        *(WHOLE[:-1], WHOLE[:40], WHOLE + "a", WHOLE[:50] + "a" + WHOLE[51:], WHOLE[:-1] + "7"),
        *(TOKEN.write(fields), TOKEN.write(fields * 2), TOKEN.write(b"\x81"), TOKEN.write(b"\xff\x00")),
        TOKEN.write(b"\x81\x20m"),
    ]
    said = agree(pasted)
    assert all(isinstance(what, str) for what in said)
    assert len({str(what) for what in said}) > 15


def test_an_invite_is_read_as_people_paste_it() -> None:
    middle = len(WHOLE) // 2
    pasted = [
        WHOLE,
        WHOLE.upper(),
        f" {WHOLE[:middle]}\r\n  {WHOLE[middle:]}\n",
        f'"{WHOLE}",',
        f"«{WHOLE}»",
        f"{WHOLE[:9]}\u200b{WHOLE[9:]}",
    ]
    assert agree(pasted) == [1_800_000_000] * len(pasted)


@settings(max_examples=3, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.sampled_from(LETTERS)), min_size=60, max_size=90)
)
def test_any_damage_is_called_the_same(damage: list[tuple[int, str]]) -> None:
    agree([WHOLE[:at] + letter + WHOLE[at + 1 :] for at, letter in damage])
