"""Parse the output of `--try-device` of our programs, and judge the device by it. Pure."""

import signal
from collections.abc import Sequence

from meshd.process.interface import Ended

USAGE = 1  # exit code: the program does not know the option or the device, so nothing was tried
MOST_WORD = 80
MOST_TEXT = 200


class TrialReport:
    """The state of a trial. `see` gets each line of output, including those of drivers."""

    def __init__(self, operations: Sequence[str]) -> None:
        self._operations = frozenset(operations)
        self._trying = ""
        self._faults: list[str] = []
        self.ended = False

    def see(self, line: str) -> bool:
        """Parse a line and say whether it belongs to the trial."""
        kind, _, rest = line.partition(" ")
        word, _, text = rest.partition(" ")
        # The trial as a whole.
        if kind == "tried" and rest.isdigit():
            self._trying, self.ended = "", True
            return True
        text = "".join(letter for letter in text if letter.isprintable())[:MOST_TEXT]
        if kind == "failed" and word == "device":
            self._faults.append(text or "it cannot be opened")
            return True
        # One operation.
        if word not in self._operations:
            return False
        match kind:
            case "trying":
                self._trying = word
            case "right" | "unknown":
                pass
            case "lacks":
                self._faults.append(f"it cannot compute {word} ({text})")
            case "wrong":
                error, _, allowed = text.partition(" ")
                self._faults.append(f"it computes {word} wrong (error {error}, {allowed} is allowed)")
            case "failed":
                self._faults.append(f"it fails to compute {word} ({text})")
            case _:
                return False
        return True

    def why_unfit(self, ended: Ended | None) -> str:
        """Return why the device may not be used; empty if it may. `ended` is None after a time-out."""
        at = f" while it computed {self._trying}" if self._trying else ""
        if self._faults:
            more = f", and {len(self._faults) - 1} more" if len(self._faults) > 1 else ""
            return f"{self._faults[0]}{more}"
        if ended is None:
            return f"its trial hung{at}"
        if ended.no_memory:
            return f"its trial was ended by the kernel{at}: {ended.no_memory}"
        if ended.signal is not None:
            return f"its trial was ended by {signal.Signals(ended.signal).name}{at}"
        if not self.ended and (ended.code != USAGE or self._trying):
            return f"its trial ended with exit code {ended.code}{at}"
        return ""

    def was_tried(self, ended: Ended | None) -> bool:
        """Say whether the trial ran; False if the program does not know it, so nothing can be said."""
        return self.ended or bool(self._trying or self._faults) or ended is None or ended.code != USAGE
