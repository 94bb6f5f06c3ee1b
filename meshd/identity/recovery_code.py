"""The recovery code of a mesh: its root key as a word that people write down and type again. Pure.

It is an `Armour` (invite.py) of prefix `meshdroot1`, written in groups of four characters. A typist makes one
mistake more often than several. The checksum has 32 bits, so trying all words with one mistake (about 2000)
finds the right one, and the error can name the place. Blanks and hyphens between groups do not count.
"""

from collections.abc import Iterator

from meshd.base.errors import UserError
from meshd.identity.invite import ALPHABET, Armour
from meshd.identity.keys import KEY_BYTES

GROUP_CHARS = 4
CODE = Armour(
    what="recovery code",
    stem="meshdroot",
    version=1,
    remedy="compare it with the line that `meshd mesh export` wrote: after `meshdroot1` it has groups of "
    f"{GROUP_CHARS} characters, letters and digits from 2 to 7",
)
_DIGITS = CODE.overhead_chars(KEY_BYTES) - len(CODE.prefix)
_MAX_NAMED = 4  # characters that no code has, in one error


def write_code(seed: bytes) -> str:
    """Return the code of a root key in groups."""
    word = CODE.write(seed)
    digits = word[len(CODE.prefix) :]
    groups = (digits[at : at + GROUP_CHARS] for at in range(0, len(digits), GROUP_CHARS))
    return " ".join((CODE.prefix, *groups))


def read_code(text: str) -> bytes:
    """Return the root key. Raises UserError that names the mistake; it shows at most the wrong characters."""
    digits = CODE.digits(text.replace("-", ""))
    try:
        seed = CODE.payload(digits)
    except UserError as error:
        raise _mistake(digits) or error from None
    if len(seed) != KEY_BYTES:
        raise CODE.wrong("its length is wrong")
    return seed


def _mistake(digits: str) -> UserError | None:
    """Return the error that names the one mistake in `digits`, or the characters that no code has."""
    if abs(len(digits) - _DIGITS) <= 1:
        for right, why in _repairs(digits):
            if _is_code(right):
                return CODE.wrong(why)
    strange = [f"{_place(at)} is `{char}`" for at, char in enumerate(digits) if char not in ALPHABET]
    if strange:
        return CODE.wrong(f"{', '.join(strange[:_MAX_NAMED])}, which no code contains")
    if len(digits) == _DIGITS:
        return CODE.wrong("the checksum does not match: at least two characters are wrong")
    return None


def _is_code(digits: str) -> bool:
    try:
        return len(CODE.payload(digits)) == KEY_BYTES
    except UserError:
        return False


def _repairs(digits: str) -> Iterator[tuple[str, str]]:
    """Yield each text that may have been meant, and what is wrong with `digits` then."""
    letters = sorted(ALPHABET)
    for at, char in enumerate(digits):
        before, after = digits[:at], digits[at + 1 :]
        if len(digits) == _DIGITS:
            for letter in letters:
                yield before + letter + after, f"{_place(at)} is `{char}`, and must be `{letter}`"
            if after:
                yield before + after[0] + char + after[1:], f"{_place(at)} and the next one are swapped"
        elif len(digits) > _DIGITS:
            yield before + after, f"{_place(at)}, `{char}`, is too many"
    if len(digits) < _DIGITS:
        for at in range(_DIGITS):
            for letter in letters:
                yield digits[:at] + letter + digits[at:], f"{_place(at)}, `{letter}`, is missing"


def _place(at: int) -> str:
    """Name the place of a character as people count it."""
    group, place = divmod(at, GROUP_CHARS)
    return f"character {place + 1} of group {group + 1}"
