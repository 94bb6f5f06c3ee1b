"""Make the text of a report: run all sections within bounds of time, put them together, remove secrets.

If the secrets of this node cannot be searched for in time there is no report: it could not be checked.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from meshd import __version__
from meshd.base.errors import MeshdError, UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.units import in_bytes, in_number
from meshd.report.fields import in_line
from meshd.report.logs import MOST_LINE_CHARS
from meshd.report.scrub import REMOVED, Scrubber
from meshd.report.secrets import FoundSecrets, Places, find_secrets, names_of_user, public_hosts
from meshd.report.sections import bounded

FORMAT = 1
SECTION_SECONDS = 15.0
SECRETS_SECONDS = 30.0
MOST_SECTION_BYTES = 128 << 10
MOST_BYTES = 2 << 20  # of the whole text


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its title, what yields its lines, and how long that may take, and how large it may be."""

    title: str
    write: Callable[[], Iterable[str]]
    seconds: float = SECTION_SECONDS
    most: int = MOST_SECTION_BYTES


@dataclass(slots=True)
class _Running:
    """A section that is written in a thread, which is left behind if it does not end."""

    section: Section
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=self.section.title, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with Contained("this machine", f"section `{self.section.title}`"):
                self._write()
        except MeshdError as error:
            self.lines.append(f"not available: {in_line(error.with_hint)}")

    def _write(self) -> None:
        try:
            for line in bounded(self.section.write(), self.section.most):
                self.lines.append(line if line.isprintable() else in_line(line, MOST_LINE_CHARS))
        except OSError as error:
            self.lines.append(f"cannot be read: {(error.strerror or type(error).__name__).lower()}")

    def result(self, began: float) -> list[str]:
        """Return the lines, once all are there or the time is used up."""
        self.thread.join(max(0.0, began + self.section.seconds - time.monotonic()))
        if self.thread.is_alive():
            return [*self.lines, f"cut off after {self.section.seconds:.0f} s"]
        return self.lines or ["nothing"]


@dataclass(frozen=True, slots=True)
class Report:
    """The text, the titles of its sections, and sentences about what was removed or could not be checked."""

    text: str
    titles: tuple[str, ...]
    removed: tuple[str, ...]


def write_report(sections: Sequence[Section], places: Places, hosts: Iterable[str], *, now: float) -> Report:
    """Write all sections at once, and remove secrets from the whole. Raises UserError if that is impossible.

    `hosts`: settings that may name hosts. `now`: Unix seconds.
    """
    began = time.monotonic()
    running = [_Running(section) for section in sections]
    secrets = _search(places)
    homes, users = names_of_user(places.environs)
    scrubber = Scrubber(secrets.values, homes=homes, users=users, hosts=public_hosts(hosts))
    parts = [(started.section.title, started.result(began)) for started in running]
    body = scrubber.scrub("\n".join(_section(title, lines) for title, lines in parts))
    if cut := max(0, len(body.encode(errors="replace")) - MOST_BYTES):
        body = body.encode(errors="replace")[:MOST_BYTES].decode(errors="ignore").rpartition("\n")[0]
        body += f"\n\n{in_bytes(cut)} more were cut off\n"
    removed = tuple(map(scrubber.scrub, _removed(scrubber, secrets)))
    titles = tuple(title for title, _ in parts)
    date = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S")
    head = [
        f"meshd report, format {FORMAT}, written {date} UTC by meshd {__version__}",
        "It was sent nowhere. Read it before you give it to others: names and ids of machines and models are",
        "in it.",
        "",
        *removed,
        "",
        f"sections: {', '.join(titles)}",
    ]
    return Report("\n".join(head) + "\n" + body + "\n", titles, removed)


def _section(title: str, lines: Iterable[str]) -> str:
    # all lines are indented: no text of a peer looks like a title
    return "\n".join(("", f"== {title} ==", *(f"  {line}" for line in lines)))


def _search(places: Places) -> FoundSecrets:
    """Find the secrets of this node within bounds of time. Raises UserError."""
    found: list[FoundSecrets] = []

    def search() -> None:
        with suppress(Fault), Contained("this machine", "the search for secrets"):
            found.append(find_secrets(places))

    thread = threading.Thread(target=search, name="secrets", daemon=True)
    thread.start()
    thread.join(SECRETS_SECONDS)
    if not found:
        raise UserError(
            "cannot search for the secrets of this node, so no report was written",
            hint="check that its directory and your home directory can be read (`ls`), and try again",
        )
    return found[0]


def _removed(scrubber: Scrubber, secrets: FoundSecrets) -> list[str]:
    """Say what was searched for, removed and masked, and what could not be searched."""
    kinds = sorted(secrets.counts.items())
    searched = ", ".join(in_number(count, kind) for kind, count in kinds) or "none are known"
    lines = [
        f"secrets: {in_number(scrubber.removed, 'place')} replaced by `{REMOVED}` (searched for: {searched}, "
        "and for whatever looks like a secret)",
        f"addresses: {in_number(scrubber.addresses, 'public one')} and "
        f"{in_number(scrubber.hosts, 'host name')} replaced by names such as `ip4-1`; private addresses are "
        "kept, as they explain faults of the network",
        "people: your home directory and user name are `~`",
        "left out: prompts, answers, contents of models, names of API keys, values of llama-server's "
        "options, lines of llama.cpp's logs other than about loads and failures",
    ]
    if scrubber.too_short:
        short = in_number(scrubber.too_short, "secret")
        lines.append(f"not searched: {short} of fewer than 8 characters, which ordinary words contain")
    unread = sorted(secrets.unread.items())
    return [*lines, *(f"not searched for secrets: {in_line(place)}: {why}" for place, why in unread)]
