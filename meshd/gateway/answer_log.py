"""The log of answers: one JSON object a line, in a file of bounded size that only its owner can read.

What was asked and answered is not in it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.log import get
from meshd.base.rotated_file import RotatedFile

ANSWER_LOG_NAME = "answers.jsonl"
ANSWER_LOG_BYTES = 4 << 20  # some 16,000 answers; one older file of the same size is kept beside it
_log = get("gateway")


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """A line. `time`: when it ended, UTC; `key`: the key's name, null where none is asked for.

    Tokens that llama-server did not tell are null. Those of the prompt are estimated when the client hung up.
    `waited_s` is until its turn came, `computed_s` since then. `status`: HTTP's; of a stream that ended with
    an error, the error's; 499 when the client hung up before it was whole.
    """

    time: str
    key: str | None
    model: str
    path: str
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int
    waited_s: float
    computed_s: float
    status: int
    prompt_estimated: bool = False


class AnswerLog:
    """The file at `path`, and the one before it."""

    def __init__(self, path: Path, *, most: int = ANSWER_LOG_BYTES) -> None:
        self._path = path
        self._file = RotatedFile(path, most=most, on_lost=self._lost)

    def write(self, answer: LoggedAnswer) -> None:
        """Append it. A disk that takes nothing costs lines; the log says when, and how many."""
        self._file.write(json.dumps(asdict(answer)).encode() + b"\n")
        if lost := self._file.take_lost():
            _log.warning("answer_log_back", path=str(self._path), count=lost)

    def close(self) -> None:
        """Idempotent; a later write opens it again."""
        self._file.close()

    def tokens_by_key(self, day: str) -> Mapping[str, int]:
        """Tokens of prompts and answers of this day (`2026-11-23`, UTC) by the key's name, as far as known.

        Reads both files: for a thread. Raises UserError when one is there and cannot be read.
        """
        found: Counter[str] = Counter()
        for line in self._lines():
            if not line.startswith(f'{{"time": "{day}'):
                continue
            try:
                said: object = json.loads(line)
            except ValueError:
                continue  # half a line
            if isinstance(said, dict) and isinstance(key := said.get("key"), str):
                figures = (said.get("prompt_tokens"), said.get("generated_tokens"))
                found[key] += sum(figure for figure in figures if isinstance(figure, int) and figure > 0)
        return found

    def _lines(self) -> Iterator[str]:
        for path in (self._path.with_name(self._path.name + ".1"), self._path):
            try:
                with path.open(encoding="utf-8", errors="replace") as file:
                    yield from file
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UserError(
                    f"cannot read the log of answers `{path}`: {error.strerror}",
                    hint="make it readable, or move it away: limits per day then count anew",
                ) from error

    def _lost(self, error: OSError) -> None:
        _log.warning("answer_log_lost", path=str(self._path), why=error.strerror or type(error).__name__)


def utc_text(wall: float) -> str:
    """`2026-11-23T16:35:00.123Z` of unix seconds."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
