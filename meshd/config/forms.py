"""Forms of values: text of an option or variable, or a TOML value, to the value that the tree holds.

A form raises ValueError for anything else; the caller knows key and origin and writes the message. Only for a
`~` without a home directory is it a UserError.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.files import expanded
from meshd.base.hosts import why_no_host
from meshd.identity import naming
from meshd.model.layer_range import LayerRange, parse_layer_range
from meshd.model.model_name import is_path, parse_model_name

MAX_DURATION_SECONDS = 10 * 366 * 86400
LEAST_LENT_BYTES = 1 << 20
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(I?B)?", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt]?)(bit|b|byte)(?:/s|ps)?", re.IGNORECASE)
MIN_RATE_BYTES = 8_000  # 64 kbit/s: with less a node cannot even keep up its sessions
_DURATION = re.compile(r"(?:(\d{1,9})([smhdw]))+")
_PART = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class HostPort:
    """`host` is a name or an address without brackets, empty for all addresses; `port` 0 picks one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Form:
    """`read` makes the value or raises ValueError; `expected` says in words what it takes.

    `write` makes of a value what a person would write, where the tree has something else: bytes, say.
    `separator` divides the items of a list in a variable; empty: the value is no list.
    """

    read: Callable[[object], object]
    expected: str
    write: Callable[[object], object] = lambda value: value
    separator: str = ""


def parse_size(value: object) -> int:
    """Parse bytes from `8G`, `512M`, `1GiB`, `1.5T`, `4096` (powers of 1024) or `8GB` (powers of 1000)."""
    if isinstance(value, int) and not isinstance(value, bool):
        bytes_ = value
    else:
        match = _SIZE.fullmatch(_str(value).strip())
        if match is None:
            raise ValueError("not a size")
        number, prefix, unit = match.group(1), match.group(2).upper(), (match.group(3) or "").upper()
        step = 1000 if unit == "B" and prefix else 1024
        bytes_ = int(float(number) * step ** (" KMGT".index(prefix) if prefix else 0))
    if not 0 < bytes_ < 1 << 60:
        raise ValueError("out of range")
    return bytes_


def _lent_memory(value: object) -> int:
    """Parse a size; one that is less than any model needs is a number whose unit was forgotten."""
    if (size := parse_size(value)) < LEAST_LENT_BYTES:
        raise ValueError("a unit is missing")
    return size


def _write_size(value: object) -> object:
    """Return `20G`, or a number where no unit fits."""
    if not isinstance(value, int) or not value:
        return value
    unit = next((power for power in range(4, 0, -1) if value % 1024**power == 0), 0)
    return f"{value >> 10 * unit}{' KMGT'[unit]}" if unit else value


def _write_rate(value: object) -> object:
    if not isinstance(value, int) or not value:
        return value
    unit = next((power for power in (3, 2, 1) if 8 * value % 1000**power == 0), 0)
    return f"{8 * value // 1000**unit}{' kMG'[unit]}bit" if unit else f"{value}B"


def _size_or_none(value: object) -> int:
    return 0 if value in (0, "0") and not isinstance(value, bool) else parse_size(value)


def parse_rate(value: object) -> int:
    """Parse bytes a second from `20Mbit`, `500 kbit/s`, `100Mbps` (bits) or `2.5MB`, `2.5MB/s` (bytes;
    capital B).

    Powers of 1000, as networks count.
    """
    match = _RATE.fullmatch(_str(value).strip())
    if match is None:
        raise ValueError("not a rate")
    number, prefix, unit = match.group(1), match.group(2).upper(), match.group(3)
    scaled = float(number) * 1000 ** " KMGT".index(prefix or " ")
    rate = int(scaled if unit == "B" or unit.lower() == "byte" else scaled / 8)
    if not MIN_RATE_BYTES <= rate < 1 << 50:
        raise ValueError("out of range")
    return rate


def parse_duration(value: object) -> int:
    """Parse seconds from `24h`, `30m`, `7d`, `1h30m`; a bare number counts seconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        seconds = value
    elif (plain := _str(value).strip().lower()).isdecimal() and len(plain) < 12:
        seconds = int(plain)
    elif _DURATION.fullmatch(plain):
        seconds = sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(plain))
    else:
        raise ValueError("not a duration")
    if not 0 < seconds <= MAX_DURATION_SECONDS:
        raise ValueError("out of range")
    return seconds


def parse_address(value: object) -> HostPort:
    """Parse `HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `*:PORT` (all addresses)."""
    plain = _str(value).strip()
    host, colon, port = plain.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not re.fullmatch(r"[0-9a-fA-F:.]+(%[\w.-]+)?", host):
            raise ValueError("not an IPv6 address")
    elif not re.fullmatch(r"[A-Za-z0-9._-]*|\*", host):
        raise ValueError("not a host")
    elif host not in ("", "*") and (why := why_no_host(host)):
        raise ValueError(why)
    return HostPort("" if host == "*" else host, int(port))


def _peer_address(value: object) -> HostPort:
    parsed = parse_address(value)
    if not parsed.host or not parsed.port:
        raise ValueError("host and port are both needed")
    return parsed


def _stun(value: object) -> str:
    return str(_peer_address(value))


def _text(value: object) -> str:
    plain = _str(value)
    if not plain or len(plain) > 4096 or not plain.isprintable():
        raise ValueError("not a line of text")
    return plain


def _token(value: object) -> str:
    plain = _str(value)
    if not plain.strip() or len(plain) > 4096 or "\0" in plain:
        raise ValueError("not a token")
    return plain


def _word(value: object) -> str:
    plain = _text(value).strip()
    if not plain or " " in plain:
        raise ValueError("not one word")
    return plain


def _node_name(value: object) -> str:
    plain = _str(value)
    if not naming.is_word(plain):
        raise ValueError("not a name")
    return plain


def _path(value: object) -> Path:
    plain = _str(value)
    if not plain or "\0" in plain:
        raise ValueError("not a path")
    return expanded(plain)


def _model(value: object) -> Path | str:
    """Return a path where it can only be one; else the name's text: load.py finds a file of that name."""
    plain = _str(value)
    if is_path(plain):
        return _path(plain)
    return str(parse_model_name(plain))


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    plain = _str(value).strip().lower()
    if plain in ("1", "true", "yes", "on"):
        return True
    if plain in ("0", "false", "no", "off"):
        return False
    raise ValueError("neither true nor false")


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    number = float(value)
    if not 0 <= number < 1e6:  # also refuses nan
        raise ValueError("out of range")
    return number


def _layer_range(value: object) -> LayerRange:
    return parse_layer_range(_str(value))


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


def whole(low: int, high: int) -> Form:
    """Return the form of a whole number within the bounds, both included."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("not a whole number")
        if isinstance(value, str) and not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
            raise ValueError("not a whole number")
        if not low <= int(value) <= high:
            raise ValueError("out of range")
        return int(value)

    return Form(read, f"a whole number from {low} to {high}")


def whole_or(word: str, low: int, high: int) -> Form:
    """Return the form of `whole`, but read the word as 0, which is not within the bounds."""
    number = whole(low, high)

    def read(value: object) -> object:
        return 0 if value == word else number.read(value)

    return Form(read, f"{number.expected}, or `{word}`")


def choice(*words: str) -> Form:
    """Return the form of one of the words."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError("not one of them")
        return str(value)

    return Form(read, f"one of {', '.join(words)}")


def listed(item: Form, *, comma: bool = True, none: str = "", unique: bool = False) -> Form:
    """Return the form of several items: a list, or text with commas (unless not `comma`; a variable then has
    colons).

    The single word `none`, where it is given, stands for the empty list.
    """

    def read(value: object) -> tuple[object, ...]:
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, Sequence) or isinstance(given, bytes):
            raise ValueError("not a list")
        flat: list[object] = []
        for entry in given:
            flat += [p.strip() for p in entry.split(",")] if comma and isinstance(entry, str) else [entry]
        if none and flat == [none]:
            return ()
        made = tuple(item.read(entry) for entry in flat)
        return tuple(dict.fromkeys(made)) if unique else made

    expected = f"a list, each {item.expected}" + (f"; or `{none}`" if none else "")
    return Form(read, expected, separator="," if comma else ":")


SIZE = Form(parse_size, "a size such as 8G, 512M or 1GiB", _write_size)
LENT_MEMORY = Form(
    _lent_memory, "a size such as 8G, 512M or 1GiB, at least 1M; without a unit it is in bytes", _write_size
)
SIZE_OR_NONE = Form(_size_or_none, "a size such as 8G, 512M or 1GiB, or 0 for none", _write_size)
RATE = Form(parse_rate, "a rate such as 20Mbit, 500kbit or 2.5MB (a second; at least 64kbit)", _write_rate)
ADDRESS = Form(parse_address, "HOST:PORT such as 0.0.0.0:17430, [::]:17430 or :0")
PEER_ADDRESS = Form(_peer_address, "HOST:PORT such as 192.168.1.7:50052")
STUN = Form(_stun, "HOST:PORT such as stun.example.org:3478")
TEXT = Form(_text, "a line of text")
JOIN = Form(_token, "an invite, @FILE or - (standard input)")
WORD = Form(_word, "one word")
NODE_NAME = Form(
    _node_name, f"1 to {naming.MAX_NAME_CHARS} letters (a to z, A to Z), digits, dots, hyphens or underscores"
)
PATH = Form(_path, "a path")
MODEL = Form(_model, "a path, hf:ORG/REPO[:QUANT], ollama:NAME[:TAG], mesh:NAME or a model's name")
BOOLEAN = Form(_boolean, "true or false")
LAYER_RANGE = Form(_layer_range, "NODE=FIRST-LAST such as garage=0-14")
WEIGHT = Form(_weight, "a number not below 0")
