"""Values for an annotation: good ones, extreme ones, and those that the pool of a scene makes meaningful."""

import collections.abc
import dataclasses
import enum
import functools
import importlib
import inspect
import pkgutil
import random
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshd import wire
from meshd.identity.keys import KeyPair

from tests.fuzz.mutate import BLOBS, NUMBERS, TEXTS
from tests.soak import SEED

_MOST = 2048  # bytes of what is drawn


def _sizes() -> tuple[int, ...]:
    """Return the sizes that the wire names."""
    modules = [
        importlib.import_module(f"{wire.__name__}.{one.name}") for one in pkgutil.iter_modules(wire.__path__)
    ]
    named = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_BYTES") and isinstance(value, int) and value <= _MOST
    }
    return (0, *sorted(named))


def drawn_seed() -> int:
    """Return the seed of a test: another one in each run, printed; MESHD_SEED repeats one."""
    print(f"MESHD_SEED={SEED}")  # noqa: T201
    return SEED


SIZES = _sizes()
SMALL = (0, 1, 2, 3, 7, 30, 60, 443, 1024, 4096)
LETTERS = (
    "node",
    "cpu",
    "gpu",
    "worker",
    "serve",
    "mul_mat",
    "rpc",
    "mesh 2",
    "IceUser0",
    "IcePassword0123456789+/ab",
    "a" * 26,
)
HOSTS = (
    "203.0.113.7",
    "198.51.100.9",
    "10.0.0.1",
    "10.9.9.9",
    "192.168.77.1",
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "255.255.255.255",
    "169.254.169.254",
    "224.0.0.251",
    "::1",
    "::",
    "ff02::fb",
    "fe80::1",
    "fd00::9",
    "2001:db8::7",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
)
_NAMES = (
    ".x",
    "a..b",
    "x" * 64 + ".y",
    "xn--",
    "relay.example",
    "*",
    "%00",
    "ä" * 40,
    "localhost",
    "127.1",
    "0x7f.1",
)
_KEY = str(KeyPair.from_seed(bytes(32)).peer)
RELAYS = tuple(f"relay://{_KEY}@{f'[{host}]' if ':' in host else host}:443" for host in (*HOSTS, *_NAMES))


hints_of = functools.cache(typing.get_type_hints)


@dataclass(frozen=True, slots=True)
class Pool:
    """Values that mean something to the victims: ids and records; names of services, topics, nodes."""

    blobs: Sequence[bytes] = ()
    texts: Sequence[str] = ()


class Draw:
    """Draws for one run. `wild`: how often a value is an extreme one rather than a likely one."""

    def __init__(self, rng: random.Random, pool: Pool, *, wild: float = 0.2) -> None:
        self.rng = rng
        self.pool = pool
        self._wild = wild
        self.asked: int | None = None  # bytes that a reader has just asked for

    def __call__(self, annotation: object) -> object:
        """A value of that type. What has a constructor may refuse: raises what that raises."""
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Literal:
            return self.rng.choice(inner)
        if origin in (typing.Union, types.UnionType):
            return self(self.rng.choice(inner))
        if origin is tuple:
            return tuple(self(inner[0]) for _ in range(self.rng.choice((0, 1, 1, 2, 3, 16, 40))))
        if origin is frozenset:
            return frozenset(self(inner[0]) for _ in range(self.rng.randrange(4)))
        if origin in (collections.abc.Mapping, dict):
            return {self(inner[0]): self(inner[1]) for _ in range(self.rng.choice((0, 1, 2, 30)))}
        if inspect.isclass(annotation):
            return self._of_class(annotation)
        raise TypeError(f"no way to draw {annotation!r}")

    def _of_class(self, kind: type) -> object:
        plain = self._PLAIN.get(kind)
        if plain is not None:
            return plain(self)
        if issubclass(kind, enum.Enum):
            return self.rng.choice(list(kind))
        if dataclasses.is_dataclass(kind):
            return self.instance(kind)
        raise TypeError(f"no way to draw a {kind.__name__}")

    def instance(self, kind: type) -> object:
        """One of a dataclass, by the annotations of its fields."""
        host = self.rng.choice(HOSTS)
        hints = hints_of(kind)
        return kind(**{name: host if name == "host" else self(hint) for name, hint in hints.items()})

    def text(self) -> str:
        """Return a name, a topic, an address or a URL."""
        if self.rng.random() < self._wild:
            return self.rng.choice((*TEXTS, *RELAYS))
        return self.rng.choice((*LETTERS, *HOSTS[:2], *self.pool.texts))

    def number(self) -> int:
        """Small, or at the end of what some width holds."""
        if self.rng.random() < self._wild:
            return self.rng.choice(NUMBERS) + self.rng.choice((-1, 0, 0, 1))
        return self.rng.choice(SMALL)

    def blob(self) -> bytes:
        """Return bytes of a size that means something, or of the pool."""
        if self.asked is not None and self.rng.random() < 0.5:
            return self.rng.randbytes(self.asked)
        luck = self.rng.random()
        if luck < self._wild:
            return self.rng.choice(BLOBS)
        if luck < self._wild + 0.3 and self.pool.blobs:
            return self.rng.choice(self.pool.blobs)
        return self.rng.randbytes(self.rng.choice(SIZES))

    _PLAIN: typing.ClassVar[dict[type, Callable[["Draw"], object]]] = {
        str: text,
        int: number,
        bytes: blob,
        memoryview: blob,
        bool: lambda it: it.rng.random() < 0.5,
        float: lambda it: it.rng.choice((0.0, 0.5, 30.0, -1.0, 1e300, float("nan"), float("inf"))),
        type(None): lambda _it: None,
    }
