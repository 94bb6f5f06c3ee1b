"""Failures of llama-server before it was ready: whether they are chance, and what to say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshd.base.backoff import Backoff
from meshd.devices.refused_option import refused_option
from meshd.model.status import SplitPart
from meshd.process.interface import ChildState, ChildStatus


@dataclass(frozen=True, slots=True)
class ServerDied:
    """Tell how llama-server ended, or made no token, before it was ready: its split, and its last lines."""

    name: str
    split: tuple[SplitPart, ...]
    tail: tuple[str, ...]

    def as_child(self, starts: int, failures: int) -> ChildStatus:
        """Show it in status while it is not started again after so many `starts`; `failures` in a row."""
        return ChildStatus(
            name=self.name,
            state=ChildState.FAILED,
            restarts=max(0, starts - 1),
            reason=f"ended {failures} times in a row before it was ready",
            tail=self.tail,
        )


SERVER_TRIES = 3  # of llama-server with one split: then it is not chance
SERVER_TRIES_ANY = 6  # with whatever split: free memory, and so the split, may be another each time
SERVER_RETRY = Backoff(first=30.0, factor=2.0, most=600.0)


class ServerFailures:
    """Count the failures of one model, over all runs."""

    def __init__(self) -> None:
        self.restarts = 0
        """Those that nobody asked for."""
        self.why_restarted = ""
        """The last time."""
        self.in_row = 0
        self._same = 0  # of them, the last with one split
        self._died: ServerDied | None = None

    def was_ready(self) -> None:
        """Note that a run has made a token."""
        self.in_row, self._same, self._died = 0, 0, None

    def died(self, how: ServerDied) -> None:
        """Note that a run has ended by it before that."""
        same = self._died is not None and self._died.split == how.split
        self.in_row += 1
        self._same = self._same + 1 if same else 1
        self._died = how

    def is_no_chance(self, *, spares: bool) -> bool:
        """Return True if it is not chance. `spares`: the next run leaves a worker out, perhaps the reason."""
        if self._refused_option:
            return True
        return (self._same >= SERVER_TRIES and not spares) or self.in_row >= SERVER_TRIES_ANY

    def what_to_say(self, why: str, llama_args: Sequence[str]) -> tuple[str, str]:
        """Return what is wrong, and what to do next; `why` is how it ended."""
        hint = "run `meshd logs llama-server` for the full log"
        if llama_args:
            hint = f"check the arguments after `--`: `{' '.join(llama_args)}`"
        if refused := self._refused_option:
            return refused, hint
        return f"{self.in_row} times in a row: {why}", hint

    @property
    def _refused_option(self) -> str:
        return refused_option(self._died.tail) if self._died is not None else ""

    @property
    def delay(self) -> float:
        """Return the seconds until it is worth another try."""
        return SERVER_RETRY.delay(max(0, self.in_row - SERVER_TRIES), 0.0)

    @property
    def failed_child(self) -> ChildStatus | None:
        """Return its status while it is not started."""
        return self._died.as_child(self.restarts, self.in_row) if self._died is not None else None

    def as_one(self, child: ChildStatus) -> ChildStatus:
        """Show the llama-servers of all runs as one that is restarted."""
        again = self.restarts and child.is_up
        reason = f"the last time because {self.why_restarted}" if again else child.reason
        return replace(child, restarts=self.restarts, reason=reason)
