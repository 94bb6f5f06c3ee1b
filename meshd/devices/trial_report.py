"""What `--try-device` of our programs prints, and what that says of the device. Pure."""

import signal
from collections.abc import Sequence

from meshd.process.interface import Ended

USAGE = 1  # exit code: it does not know the option or the device, so nothing was tried
MOST_WORD = 80
MOST_TEXT = 200


class TrialReport:
    """`see` gets each line of output, whatever else the program or a driver prints between them."""

    def __init__(self, operations: Sequence[str]) -> None:
        self._operations = frozenset(operations)
        self._trying = ""
        self._faults: list[str] = []
        self.ended = False

    def see(self, line: str) -> bool:
        """Whether the line is one of the trial's."""
        kind, _, rest = line.partition(" ")
        word, _, text = rest.partition(" ")
        if kind == "tried" and rest.isdigit():
            self._trying, self.ended = "", True
            return True
        text = "".join(letter for letter in text if letter.isprintable())[:MOST_TEXT]
        if kind == "failed" and word == "device":
            self._faults.append(text or "it cannot be opened")
            return True
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
        """Why the device may not be used, when the trial ended so (None: by its deadline); empty: it may."""
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
        """False: the program does not know this trial, and nothing can be said."""
        return self.ended or bool(self._trying or self._faults) or ended is None or ended.code != USAGE
