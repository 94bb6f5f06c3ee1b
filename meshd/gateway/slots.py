"""Choose the slot of llama-server for each answer, so that busy slots lie side by side. Pure.

Where each slot has its own cache, llama.cpp computes the next tokens of several answers together only if
their slots are neighbours: each run of busy slots takes another pass through all workers. llama-server takes
the slot with the longest common prefix, else the least recently used one, wherever that is.

Here as well, the slot with the longest common prefix is taken, if that is a tenth of the prompt or all that
the slot was asked. If several have it, or none, those that were never used come first, then the half that was
used least recently, whose conversations are the least likely to come back; or all, if none of the last
prompts continued another one. Of these, the slot is taken that makes the fewest runs.

A slot's cache is known by hashes of the beginnings of its prompt, not by tokens, and not with the answer. So
a prompt that begins with a whole earlier one is taken for the next turn of that conversation.

llama-server makes a request wait whose slot is busy, even if others are free. So only slots that are
certainly free are named. When a client has hung up, llama-server frees the slot somewhat later, and is asked
whether it has. While a request is under way that may take any slot, or several, none is named.
"""

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain, pairwise
from typing import Self

from meshd.gateway.dialects.fields import objects_of

_LEAST_STEP = 256  # bytes from one mark of a prompt to the next
_STEP_SHARE = 8  # or this fraction of what is before it, if that is more
_KEPT_ENDS = 8  # of the last messages
_RECENT = 2  # prompts for each slot: what is older is in none of them
_WORTH = 0.1  # of a prompt, as llama-server has it
_UNNOTICED_SECONDS = 2.0  # llama-server looks every second whether a client is there that got nothing yet
_UNSURE_SECONDS = 600.0  # after a request took any slot, for which conversations of then may come back
_HEAD = ("tools", "chat_template_kwargs", "input_extra")  # most templates write it before the messages
_PROMPTS = ("input_prefix", "prompt")
_ANSWERED = {"assistant", "tool"}

Marks = Mapping[int, int]
"""Hashes of the beginnings of a prompt, by their length in bytes, the shortest first."""


class Prompt:
    """The text of a prompt, to compare with those that slots were asked before.

    `ends`: where its messages end. `is_first`: it certainly continues no conversation.
    """

    def __init__(self, text: bytes, ends: Sequence[int] = (), *, is_first: bool = False) -> None:
        self.is_first = is_first
        self._text = text
        # hashes of pieces, each with all before it
        self._at, self._hashes = [0], [0]
        while (at := self._at[-1] + max(_LEAST_STEP, self._at[-1] // _STEP_SHARE)) <= len(text):
            self._hashes.append(hash((self._hashes[-1], text[self._at[-1] : at])))
            self._at.append(at)
        places = {*self._at[1:], *ends[-_KEPT_ENDS:], len(text)}
        self.marks: Marks = {at: self._mark(at) for at in sorted(places)}

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Return the prompt of a request's body, a JSON object."""
        fields: dict[str, object] = json.loads(body)
        messages = objects_of(fields.get("messages"))
        head = [_written(fields[name]) for name in _HEAD if name in fields]
        # the end of a text or list is cut off: what is written next may be more of it
        prompts = [_written(fields[name]).rstrip(b'"]}') for name in _PROMPTS if name in fields]
        pieces, ends, at = head, [], sum(map(len, head))
        for message in messages:
            pieces.append(_written(message))
            at += len(pieces[-1])
            ends.append(at)
        is_first = bool(messages) and all(message.get("role") not in _ANSWERED for message in messages)
        return cls(b"".join([*pieces, *prompts]), ends, is_first=is_first)

    def __len__(self) -> int:
        return len(self._text)

    def continues(self, length: int, mark: int) -> bool:
        """Return True if it begins with a whole earlier prompt, of which these are the last mark."""
        return 0 < length <= len(self) and self._mark(length) == mark

    def shared(self, marks: Marks) -> int:
        """Return how many bytes it begins with that the prompt of these marks began with, as far as known."""
        longest = 0
        for at, mark in marks.items():
            if at > len(self) or self._mark(at) != mark:
                break
            longest = at
        return longest

    def is_worth(self, shared: int, marks: Marks) -> bool:
        """Return True if so many shared bytes are worth the slot with these marks."""
        return shared > 0 and (shared >= _WORTH * len(self) or shared == max(marks))

    def _mark(self, at: int) -> int:
        number = bisect_right(self._at, at) - 1
        before, known = self._at[number], self._hashes[number]
        return known if at == before else hash((known, self._text[before:at]))


def _written(value: object) -> bytes:
    return json.dumps(value).encode()


class _State(Enum):
    FREE = auto()
    BUSY = auto()
    LEFT = auto()  # its client hung up: llama-server may still be busy with it


@dataclass(slots=True, eq=False)
class _Slot:
    """One slot. `used`: the number of its last use; 0: none. `marks`: of the last prompt, as far as known.

    `is_there`: llama-server has begun to compute in it for its request; `left_at`: when its client hung up.
    """

    number: int
    state: _State = _State.FREE
    used: int = 0
    marks: Marks = field(default_factory=dict)
    is_there: bool = False
    left_at: float = 0.0


class SlotEnd(Enum):
    """Tells the end of a request: llama-server answered or refused it, or nobody waited for that."""

    ANSWERED = auto()
    REFUSED = auto()
    LEFT = auto()


@dataclass(slots=True, eq=False)
class SlotUse:
    """One request at llama-server, and how it ended. `slot` None: it names none.

    `marks`: of its prompt; None: it may take several slots. `has_begun`: a part of the answer has come.
    """

    slot: int | None = None
    marks: Marks | None = None
    has_begun: bool = False
    end: SlotEnd = SlotEnd.LEFT


class SlotChoice:
    """The `count` slots of one llama-server. `now` is a clock in seconds that never goes back."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._uses = 0
        self._unnamed = 0
        # the last prompts: length, last mark, whether it continued another one
        self._recent: deque[tuple[int, int, bool]] = deque(maxlen=_RECENT * count)
        self._unsure_until = 0.0  # conversations may be in other slots than is known

    @property
    def count(self) -> int:
        """Return the number of slots."""
        return len(self._slots)

    def saw(self, busy: Collection[int], now: float) -> None:
        """Note which slots llama-server says are busy now."""
        for slot in self._slots:
            if slot.number in busy:
                slot.is_there = slot.state is not _State.FREE
            elif slot.state is _State.LEFT and (slot.is_there or now - slot.left_at >= _UNNOTICED_SECONDS):
                slot.state = _State.FREE

    def needs_look(self, prompt: Prompt | None, now: float) -> bool:
        """Return True if it matters for a request which slots are busy (`saw`)."""
        return bool(self._in(_State.LEFT)) or self._would_overtake(prompt, now)

    def should_wait(self, prompt: Prompt | None, now: float) -> bool:
        """Return True if a request should wait a moment, and look again.

        The slot with the longest common prefix may have been left, or a request has yet to come to the slot
        that it names, and would find this one there.
        """
        if prompt is None or self._unnamed:
            return self._would_overtake(prompt, now)
        left, free = self._in(_State.LEFT), self._in(_State.FREE)
        shared = {slot: prompt.shared(slot.marks) for slot in chain(left, free)}
        best = max(left, key=shared.__getitem__, default=None)
        if best is not None and all(shared[slot] < shared[best] for slot in free):
            return prompt.is_worth(shared[best], best.marks)
        return self._would_overtake(prompt, now)

    def take(self, prompt: Prompt | None, now: float) -> SlotUse:
        """Begin a request, and choose its slot. `prompt` None: it may take several, or cannot name any."""
        slot = self._choose(prompt, now)
        if prompt is not None:
            again = any(prompt.continues(length, mark) for length, mark, _ in self._recent)
            self._recent.append((len(prompt), prompt.marks[len(prompt)], again))
        if slot is None:
            self._unnamed += 1
        else:
            slot.state, slot.is_there = _State.BUSY, False
        return SlotUse(None if slot is None else slot.number, None if prompt is None else prompt.marks)

    def give_back(self, use: SlotUse, now: float) -> None:
        """End a request. Call it once for each `take`."""
        self._uses += 1
        if use.slot is None:
            self._end_unnamed(use, now)
            return
        slot = self._slots[use.slot]
        if use.end is not SlotEnd.REFUSED:
            slot.used, slot.marks = self._uses, use.marks or {}
        if use.end is SlotEnd.LEFT:
            self._leave(slot, use, now)
        else:
            slot.state = _State.FREE

    def forget(self) -> None:
        """Note that another llama-server takes the place of this one: its slots hold nothing yet.

        A slot whose request has not ended remains busy, because that request may be at the new one already.
        """
        for slot in self._slots:
            slot.used, slot.marks = 0, {}
        self._recent.clear()
        self._unsure_until = 0.0

    def _end_unnamed(self, use: SlotUse, now: float) -> None:
        """End a request that may have taken any slot, unless a request that named it had it all the time."""
        self._unnamed -= 1
        if use.end is SlotEnd.REFUSED:
            return
        if use.marks is None or now >= self._unsure_until:
            self._unsure_until = now + _UNSURE_SECONDS
        for slot in self._slots:
            if slot.state is not _State.BUSY:
                slot.used, slot.marks = max(1, slot.used), {}
                if use.end is SlotEnd.LEFT:
                    self._leave(slot, use, now)

    def _leave(self, slot: _Slot, use: SlotUse, now: float) -> None:
        slot.state, slot.left_at = _State.LEFT, now
        slot.is_there = use.has_begun or (slot.is_there and use.slot is not None)

    def _in(self, state: _State) -> list[_Slot]:
        return [slot for slot in self._slots if slot.state is state]

    def _would_overtake(self, prompt: Prompt | None, now: float) -> bool:
        """Return True if a request would name no slot, and could come to one before the request that did."""
        on_their_way = any(not slot.is_there for slot in self._in(_State.BUSY))
        return on_their_way and self._choose(prompt, now) is None

    def _choose(self, prompt: Prompt | None, now: float) -> _Slot | None:
        if prompt is None or self._unnamed:
            return None
        free, left = self._in(_State.FREE), self._in(_State.LEFT)
        if not free:  # it waits for that slot in any case
            return left[0] if len(left) == 1 else None
        # 1. The longest common prefix.
        shared = {slot: prompt.shared(slot.marks) for slot in free}
        longest = max(shared.values())
        holders = [slot for slot in free if shared[slot] == longest]
        whole = [slot for slot in holders if longest and longest == max(slot.marks)]
        if not whole and longest < _WORTH * len(prompt):
            if now < self._unsure_until and not prompt.is_first:
                return None  # it may be in any of them
            holders = free
        holders = whole or holders
        # 2. Of these, slots that were never used, or those whose conversation may be lost.
        holders.sort(key=lambda slot: slot.used)
        unused = [slot for slot in holders if not slot.used]
        spare = unused or (holders[: -(-len(holders) // 2)] if self._come_back else holders)
        # 3. Of these, the fewest runs.
        return min(spare, key=lambda slot: (self._runs_with(slot), slot.used, slot.number))

    @property
    def _come_back(self) -> bool:
        """Return False if no conversation came back lately: then whatever a slot holds is worth little."""
        is_full = len(self._recent) == self._recent.maxlen
        return not is_full or any(again for _, _, again in self._recent)

    def _runs_with(self, new: _Slot) -> int:
        busy = [False, *(slot.state is _State.BUSY or slot is new for slot in self._slots)]
        return sum(this and not before for before, this in pairwise(busy))
