"""Runs of busy slots, as llama-server or the gateway chooses them: `python -m tests.bench.slot_runs`.

A simulation without a clock, which also counts how much of the prompts is cached. Users chat, each with a
pause between its turns, and jobs ask one thing each, the next as soon as one is done. llama-server takes the
longest common prefix, from a tenth of the prompt on, else the least recently used slot, as
get_available_slot of the pin does.
"""

import heapq
import random
import sys
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from meshd.gateway.slots import Prompt, SlotChoice, SlotEnd, SlotUse

LOADS = ((4, 0, 2), (4, 0, 3), (8, 0, 4), (32, 0, 8), (4, 4, 0), (4, 6, 0), (4, 3, 1), (8, 6, 2), (32, 20, 4))
"""Slots, users and jobs."""
_SECONDS = 4000.0
_PAUSE = 20.0  # mean, between an answer and the next turn
_LONGEST = 12_000  # bytes of a conversation, after which its user begins another one


@dataclass(slots=True)
class Outcome:
    """`runs`: mean while any slot is busy; `cached`: the share of users' prompts that was in their slots."""

    runs: float
    cached: float


@dataclass
class Simulation:
    """One load. `named`: the gateway chooses."""

    slots: int
    users: int
    jobs: int
    named: bool
    now: float = 0.0
    busy: dict[int, SlotUse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(7)
        self._choice = SlotChoice(self.slots)
        self._held = [b""] * self.slots
        self._used = [-1.0] * self.slots
        self._said = [self._beginning(user) for user in range(self.users)]
        self._events: list[
            tuple[float, int, int | None, int | None]
        ] = []  # when, number, who, slot that ends
        self._number = 0

    def run(self) -> Outcome:
        for user in range(self.users):
            self._later(self._chance.uniform(0, _PAUSE), user, None)
        for _ in range(self.jobs):
            self._later(self._chance.uniform(0, 5), None, None)
        waiting: deque[int | None] = deque()
        runs = computing = cached = asked = 0.0
        while self._events[0][0] < _SECONDS:
            at, _, who, slot = heapq.heappop(self._events)
            runs += (at - self.now) * sum(number - 1 not in self.busy for number in self.busy)
            computing += (at - self.now) * bool(self.busy)
            self.now = at
            if slot is None:
                waiting.append(who)
            else:
                self._end(who, slot)
            while waiting and len(self.busy) < self.slots:
                who = waiting.popleft()
                prompt = self._prompt(who)
                common = self._begin(who, prompt)
                if who is not None:
                    cached, asked = cached + common, asked + len(prompt)
        return Outcome(runs / computing, cached / max(1.0, asked))

    def _begin(self, who: int | None, prompt: bytes) -> int:
        """Begin an answer; return how much of its prompt is in its slot."""
        use = (
            self._choice.take(Prompt(prompt), self.now)
            if self.named
            else SlotUse(self._as_llama_server(prompt))
        )
        slot = use.slot
        assert slot is not None and slot not in self.busy
        common = _common(self._held[slot], prompt)
        self._held[slot], self.busy[slot] = prompt, use
        self._later(self._chance.uniform(1, 10), who, slot)
        return common

    def _end(self, who: int | None, slot: int) -> None:
        use = self.busy.pop(slot)
        self._used[slot] = self.now
        if self.named:
            use.end = SlotEnd.ANSWERED
            self._choice.give_back(use, self.now)
        if who is None:
            self._later(0.0, None, None)
            return
        self._said[who] += f"{who} answers {self._chance.random()} ".encode() + b"y" * 400
        if len(self._said[who]) > _LONGEST:
            self._said[who] = self._beginning(who)
        self._later(self._chance.expovariate(1 / _PAUSE), who, None)

    def _as_llama_server(self, prompt: bytes) -> int:
        free = [slot for slot in range(self.slots) if slot not in self.busy]
        best = max(free, key=lambda slot: _common(self._held[slot], prompt))
        if _common(self._held[best], prompt) > 0.1 * len(prompt):
            return best
        return min(free, key=lambda slot: (self._used[slot], -slot))

    def _prompt(self, who: int | None) -> bytes:
        return self._beginning(self._number) if who is None else self._said[who]

    def _beginning(self, who: int) -> bytes:
        return f"{who} asks {self._chance.random()} ".encode() + b"x" * 300

    def _later(self, seconds: float, who: int | None, slot: int | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, who, slot))


def _common(one: bytes, other: bytes) -> int:
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def main() -> None:
    write = sys.stdout.write
    write("slots users jobs   llama-server      gateway\n                   runs cached   runs cached\n")
    for load in LOADS:
        told = [Simulation(*load, named=named).run() for named in (False, True)]
        figures = "   ".join(f"{one.runs:.2f}  {one.cached:.2f} " for one in told)
        write("{:5} {:5} {:4}   ".format(*load) + figures + "\n")


if __name__ == "__main__":
    main()
