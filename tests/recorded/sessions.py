"""Recorded sessions as files: reduced when they are written, whole again when they are read.

What is not a name or a form is replaced: texts over 60 characters become `<filler N>`, which is read as N
characters of filler; folders, dates and random ids become fixed ones. A field that is the same as in the
request before is listed in `same` and left out.
"""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.recorded.answers import Json
from tests.recorded.programs import KEY

FOLDER = Path(__file__).with_name("sessions")
LONGEST = 60  # characters of a text that is kept as it is
_WORDS = "Lorem ipsum dolor sit amet, consectetur adipiscing elit.\n"
_FILLER = re.compile(r"<filler (\d+)>")
# what a form or a name is made of
_KEPT = frozenset(
    {"id", "name", "type", "role", "call_id", "tool_call_id", "tool_use_id", "model", "signature"}
    | {"encrypted_content", "arguments", "definition", "pattern", "$schema", "enum", "required"}
)
_HEADERS = frozenset(
    {"accept", "content-type", "authorization", "x-api-key", "anthropic-version", "anthropic-beta"}
    | {"openai-beta", "originator", "x-app", "http-referer", "x-title"}
)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


@dataclass(frozen=True)
class Request:
    """One request of a program."""

    path: str
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True)
class Session:
    """A program's requests in one session. `origin`: `recorded`, or `published format` if made by hand."""

    program: str
    package: str
    version: str
    origin: str
    requests: tuple[Request, ...]


def load(path: Path) -> Session:
    """Read a session; texts have their lengths again."""
    kept = json.loads(path.read_text())
    requests: list[Request] = []
    for request in kept["requests"]:
        same = {field: requests[-1].body[field] for field in request.get("same", [])}
        requests.append(Request(request["path"], request["headers"], same | _filled(request["body"])))
    about = {field: str(kept[field]) for field in ("program", "package", "version", "origin")}
    return Session(**about, requests=tuple(requests))


def load_all() -> list[Session]:
    """Read all sessions, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"))]


def save(session: Session, reducer: "Reducer") -> None:
    """Write a session, reduced."""
    requests: list[Json] = []
    before: Json = {}
    for request in session.requests:
        body = reducer.reduce(request.body)
        same = [field for field in body if field in before and before[field] == body[field]]
        kept: Json = {"path": request.path, "headers": reducer.headers(request.headers)}
        if same:
            kept["same"] = same
        requests.append(kept | {"body": {field: body[field] for field in body if field not in same}})
        before = body
    about = {field: getattr(session, field) for field in ("program", "package", "version", "origin")}
    text = json.dumps({**about, "requests": requests}, indent=1, ensure_ascii=False)
    (FOLDER / f"{session.program}.json").write_text(text + "\n")


class Reducer:
    """Replaces what is not a name or a form. `folders`: paths of this machine, and what they become."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders
        self._ids: dict[str, str] = {}
        self._next = itertools.count(1)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that concern the API."""
        kept = {name.lower(): value for name, value in headers.items() if name.lower() in _HEADERS}
        agent = next((value for name, value in headers.items() if name.lower() == "user-agent"), "")
        if "authorization" in kept:
            kept["authorization"] = f"Bearer {KEY}"  # llm sends a key that it made up
        return kept | {"user-agent": agent.split(" ")[0]}

    def reduce(self, value: Any, key: str = "") -> Any:
        """Return a value of JSON with its texts replaced; names of fields stay."""
        if isinstance(value, dict):
            return {name: self.reduce(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.reduce(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if len(value) > LONGEST and key not in _KEPT:
            return f"<filler {len(value)}>"
        for path, name in self._folders.items():
            value = value.replace(path, name)
        return _DATE.sub("2026-01-01", _UUID.sub(self._id, value))

    def _id(self, found: re.Match[str]) -> str:
        if found[0] not in self._ids:
            self._ids[found[0]] = f"00000000-0000-4000-8000-{next(self._next):012d}"
        return self._ids[found[0]]


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _filled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    if isinstance(value, str) and (filler := _FILLER.fullmatch(value)):
        length = int(filler[1])
        return (_WORDS * (length // len(_WORDS) + 1))[:length]
    return value
