"""An API key, its user's name, and what that user may have: a line of the key file. Pure."""

import re
from dataclasses import dataclass, field, fields, replace

from meshd.base.errors import UserError

MIN_KEY_CHARS = 8  # shorter ones are guessed over a LAN
KEY_NAME_CHARS = 63
LARGEST_LIMIT = 10**12
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{KEY_NAME_CHARS - 1}}}")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may have; None: no limit. The fields are the names in the key file."""

    concurrent: int | None = None  # requests at a time, with those that wait for their turn
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None  # of prompts and answers, from midnight to midnight UTC


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`name` is shown in status and in the log of answers; the secret never is."""

    secret: str = field(repr=False)
    name: str = "key-1"
    limits: KeyLimits = KeyLimits()


LIMIT_NAMES = tuple(one.name for one in fields(KeyLimits))
OPTION_NAMES = ("name", *LIMIT_NAMES)


def parse_keys(text: str, *, label: str) -> tuple[ApiKey, ...]:
    """One key a line; empty lines and lines that begin with `#` are skipped. `label`: the file, for errors.

    A key may be followed by `name=NAME` and by limits, such as `tokens_per_day=100000`. Without a name the
    second key is `key-2`. Raises UserError, which never repeats what a line holds.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_parsed(words, where=f"line {number} of the key file `{label}`", nth=len(keys) + 1))
    names = [key.name for key in keys]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two keys of `{label}` are named `{twice[0]}`", hint="give each key its own name")
    return tuple(keys)


def _parsed(words: list[str], *, where: str, nth: int) -> ApiKey:
    secret, *options = words
    if len(secret) < MIN_KEY_CHARS or not all("!" <= char <= "~" for char in secret):
        raise UserError(
            f"{where} is not a key",
            hint=f"a key has {MIN_KEY_CHARS} or more printable ASCII characters and no spaces",
        )
    key = ApiKey(secret, f"key-{nth}")
    seen: set[str] = set()
    for option in options:
        name, _, value = option.partition("=")
        if name not in OPTION_NAMES or name in seen:
            raise UserError(
                f"{where} has something else behind the key than its name and limits",
                hint=f"write `KEY name=NAME` and at most one each of {', '.join(LIMIT_NAMES)}, as in "
                "`requests_per_minute=60`",
            )
        seen.add(name)
        key = _with_name(key, value, where) if name == "name" else _with_limit(key, name, value, where)
    return key


def _with_name(key: ApiKey, name: str, where: str) -> ApiKey:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"`name=` on {where} is not a name",
            hint=f"use 1 to {KEY_NAME_CHARS} letters, digits, dots, hyphens or underscores",
        )
    return replace(key, name=name)


def _with_limit(key: ApiKey, name: str, value: str, where: str) -> ApiKey:
    if not (value.isascii() and value.isdigit() and len(value) < 14 and 0 < int(value) <= LARGEST_LIMIT):
        raise UserError(
            f"`{name}=` on {where} is not a number", hint=f"give a whole number of at least 1: `{name}=100`"
        )
    limits = {one: getattr(key.limits, one) for one in LIMIT_NAMES} | {name: int(value)}
    return replace(key, limits=KeyLimits(**limits))
