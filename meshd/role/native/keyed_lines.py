"""A file of the cache with a line for each thing that was found out: a key, and what it is.

Lost or damaged it costs finding that out again. Several daemons may share it, and each sees what another one
adds: the newest counts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from meshd.base.replaced_file import replace_file

_KEY_LETTERS = 64
_LINE_BYTES = 256  # with its key and its end, unless told
V = TypeVar("V")


class KeyedLines(Generic[V]):
    """`path` None: kept as long as this object. Keys are those of trial_cache.py.

    Other threads may look things up: what they see is whole, and of now or of a moment ago.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        read: Callable[[str], V | None],
        show: Callable[[V], str],
        most: int,
        on_unwritten: Callable[[str], None],
        line_bytes: int = _LINE_BYTES,
        displaced: Callable[[Mapping[str, V]], str] | None = None,
    ) -> None:
        """`most` lines are kept, of at most `line_bytes`, with key and end.

        `read` gives None for what `show` has not made. `displaced`: which line goes when there are too many,
        of all of them, the oldest first; that one, unless told.
        """
        self._path = path
        self._read_value = read
        self._show = show
        self._most = most
        self._line_bytes = line_bytes
        self._on_unwritten = on_unwritten
        self._displaced = displaced if displaced is not None else lambda values: next(iter(values))
        self._values: dict[str, V] = {}
        self._seen: tuple[int, int, int] | None = None  # the file as it was read or written last
        self._refresh()

    def find(self, key: str) -> V | None:
        """None where nothing is known."""
        self._refresh()
        return self._values.get(key)

    def values(self) -> list[V]:
        """All, the oldest first."""
        self._refresh()
        return list(self._values.values())

    def add(self, key: str, value: V) -> None:
        """From now on it is known. A file that cannot be written is no error."""
        self._refresh()
        values = {one: known for one, known in self._values.items() if one != key} | {key: value}
        while len(values) > self._most:
            del values[self._displaced(values)]
        self._values = values
        self._write()

    def clear(self) -> None:
        """Nothing is known any more, for other daemons as well."""
        self._values = {}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        lines = (f"{key} {self._show(value)}\n" for key, value in self._values.items())
        try:
            replace_file(self._path, "".join(lines).encode())
        except OSError as error:
            self._on_unwritten(error.strerror or str(error))

    def _refresh(self) -> None:
        """As another daemon has left it since."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
        except OSError:
            return
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now != self._seen:
            self._seen = now
            self._values = self._read(self._path)

    def _read(self, path: Path) -> dict[str, V]:
        try:
            with path.open("rb") as file:
                lines = file.read(self._most * self._line_bytes).decode("ascii", "replace").splitlines()
        except OSError:
            return {}
        found: dict[str, V] = {}
        for line in lines:
            key, _, text = line.partition(" ")
            if len(key) == _KEY_LETTERS and set(key) <= set("0123456789abcdef"):
                value = self._read_value(text)
                if value is not None:
                    found[key] = value
        return found
