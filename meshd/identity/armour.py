"""One-word text form of secrets that people paste: prefix, length, bytes, checksum in base32. Pure.

Base32 in lower case has no character that a shell, a chat or a double click treats in its own way, and
survives being turned into capitals. The length in front tells a word that was cut off from one that was
changed. Errors never repeat the word: it holds a secret.
"""

import hashlib
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.identity.keys import from_base32, to_base32

CHECKSUM_BYTES = 4
MAX_PASTED_CHARS = 4096  # longer input is cut; a token has 300 at most

_LENGTH_BYTES = 2
_LENGTH_CHARS = 4  # characters that hold the length
_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_AROUND = "\"'`´‘’“”«»<>()[]{}.,;:*_"


def _characters(count: int) -> str:
    return f"{count} character{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Armour:
    """One kind of word: its name `what`, its prefix up to the version digit, and its remedy."""

    what: str
    stem: str
    version: int
    remedy: str

    @property
    def prefix(self) -> str:
        """The beginning of every such word."""
        return f"{self.stem}{self.version}"

    def overhead_chars(self, payload_bytes: int) -> int:
        """Return the length of the word for so many bytes, in characters."""
        bits = 8 * (_LENGTH_BYTES + payload_bytes + CHECKSUM_BYTES)
        return len(self.prefix) + -(-bits // 5)

    def write(self, payload: bytes) -> str:
        """Return the word that `read` turns back into `payload`."""
        head = len(payload).to_bytes(_LENGTH_BYTES, "big")
        return self.prefix + to_base32(head + payload + self._checksum(payload))

    def read(self, text: str) -> bytes:
        """Return the payload of a pasted word. Raises UserError that says what is wrong with it.

        White space and line breaks anywhere, quotes around it and capitals are accepted.
        """
        word = "".join(text[:MAX_PASTED_CHARS].split()).translate(_INVISIBLE).strip(_AROUND).lower()
        digits = self._after_prefix(word, len(text))
        for place, char in enumerate(digits, start=len(self.prefix) + 1):
            if char not in _ALPHABET:
                raise self.wrong(f"character {place}, `{char}`, is not allowed")
        return self._payload(digits)

    def wrong(self, why: str) -> UserError:
        """Return the error for a malformed word of this kind."""
        return UserError(f"cannot read the {self.what}: {why}", hint=self.remedy)

    def _after_prefix(self, word: str, length: int) -> str:
        if length > MAX_PASTED_CHARS:
            raise self.wrong(f"this is not one, it has {length} characters")
        if not word:
            raise self.wrong("it is empty")
        if not word.startswith(self.stem):
            raise self.wrong(f"this is not one, it does not begin with `{self.prefix}`")
        if len(word) < len(self.prefix):
            raise self.wrong(f"it is cut off after `{word}`")
        if not word.startswith(self.prefix):
            if word[len(self.stem)].isdigit():
                raise self.newer()
            raise self.wrong(f"it begins with `{word[: len(self.prefix)]}`, must be `{self.prefix}`")
        return word[len(self.prefix) :]

    def newer(self) -> UserError:
        """Return the error for a word of a version that this code does not know."""
        return UserError(
            f"cannot read the {self.what}: it was made by a newer version of meshd",
            hint="run `meshd upgrade` on this machine",
        )

    def _payload(self, digits: str) -> bytes:
        if len(digits) < _LENGTH_CHARS:
            raise self.wrong("it is truncated: only its beginning is there")
        bits = 0
        for char in digits[:_LENGTH_CHARS]:
            bits = bits << 5 | (ord(char) - 97 if char >= "a" else ord(char) - 24)
        length = bits >> (5 * _LENGTH_CHARS - 8 * _LENGTH_BYTES)
        expected = self.overhead_chars(length) - len(self.prefix)
        if expected > MAX_PASTED_CHARS:
            raise self.wrong("its first characters are damaged")
        if len(digits) < expected:
            # its beginning says how long it is, and that may be what is damaged
            missing = _characters(expected - len(digits))
            raise self.wrong(
                f"it is truncated ({missing} missing), or a character of its beginning is damaged"
            )
        if len(digits) > expected:
            extra = _characters(len(digits) - expected)
            raise self.wrong(f"it has {extra} too many, or a character of its beginning is damaged")
        try:
            raw = from_base32(digits)
        except ValueError:
            raise self.wrong("its last character is damaged") from None
        payload, checksum = raw[_LENGTH_BYTES:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if checksum != self._checksum(payload):
            raise self.wrong("the checksum does not match, so at least one character is damaged")
        return payload

    def _checksum(self, payload: bytes) -> bytes:
        return hashlib.sha256(self.prefix.encode() + b"\0" + payload).digest()[:CHECKSUM_BYTES]
