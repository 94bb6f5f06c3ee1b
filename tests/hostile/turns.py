"""Time how long an honest node keeps the processor: what a virtual clock does not see.

What runs for a node runs in a context that names it, which tasks and callbacks hand on to those they begin.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

_WHOSE: ContextVar[str] = ContextVar("whose", default="")


def context_of(name: str) -> Context:
    """A context whose work counts as that of the node `name`."""
    context = copy_context()
    context.run(_WHOSE.set, name)
    return context


class Turns:
    """Seconds of this thread's computing, whatever else the machine does; by node."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.longest = 0.0  # of one node, in one turn of the loop: nothing else of it runs meanwhile
        self._now: defaultdict[str, float] = defaultdict(float)
        self._whose = ""  # what runs now
        self._began = 0.0

    def run(self, callback: Callable[..., Any], *args: Any) -> None:
        """A callback of the loop. The clock, a system call, is read only where another's work begins."""
        whose = _WHOSE.get()
        if whose != self._whose:
            self._hand_over(whose)
        callback(*args)

    def _hand_over(self, whose: str) -> None:
        now = time.thread_time()
        if self._whose:
            self._now[self._whose] += now - self._began
        self._whose, self._began = whose, now

    def end(self) -> None:
        """The loop has run all that was ready."""
        if self._whose:
            self._hand_over("")
        if self._now:
            self.longest = max(self.longest, *self._now.values())
            for whose, seconds in self._now.items():
                self.spent[whose] += seconds
            self._now.clear()
