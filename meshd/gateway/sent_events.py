"""What a client has of a streamed answer, and how another run of its request goes on behind that. Pure.

Either llama-server is asked for the rest (continuation.py), or for the same again with the same seed: then it
makes the same events, and those that the client has are dropped. Both go on under the ids of the first run.
What the first run made is kept as it is, and read when there is another one: from then on there are the text
that was sent, and a digest of each event.

The rest is computed from other bits: what was generated token by token is now one batch of a prompt, which
rounds otherwise. So a greedy answer, whose text is to be the undisturbed one, is asked for again as long as
that takes seconds.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Mapping
from enum import Enum

from meshd.base.peer_limits import ANSWER_EVENTS
from meshd.gateway.begun_calls import CallTemplate
from meshd.gateway.continuation import continued, is_sampled, unwritten_calls
from meshd.gateway.echo import OtherAnswer
from meshd.gateway.events import EVENT_BYTES, EventSplitter, whole_events
from meshd.gateway.kept_events import KeptEvents
from meshd.gateway.rest_events import as_the_rest
from meshd.gateway.run_ids import RunIds
from meshd.gateway.sent_text import DIALECTS, SentText

MOST_AGAIN_SECONDS = 30.0  # a greedy answer that took longer so far goes on with the rest
_DIGEST_BYTES = 8
# Another run has other values here, or rounds them otherwise. Within generated text the quotation marks
# are escaped, so no text is taken for a field.
_OF_A_RUN = frozenset(
    {
        *("id", "item_id", "call_id", "response_id", "created", "created_at", "completed_at"),
        *("logprobs", "top_logprobs", "completion_probabilities", "probs"),
        *("timings", "usage", "tokens_cached", "tokens_evaluated", "id_slot"),
    }
)
_PROGRESS = "prompt_progress"  # as often as time passes
_DATA = re.compile(rb"^data:(.*?)\r?$", re.MULTILINE)


class _RunKind(Enum):
    FIRST = "first"
    SAME = "same"  # from the beginning, and the beginning is dropped
    REST = "rest"


class SentEvents:
    """Of one answer to a request at `path`; `own_seed`: its client has asked for none.

    `unsent` for all events of a run, `run_ended` at its end, `next_request` before another one.
    """

    def __init__(self, path: str, *, own_seed: bool) -> None:
        dialect = DIALECTS.get(path)
        self._own_seed = own_seed
        self._sent = SentText(dialect) if dialect is not None else None
        self._first = KeptEvents()
        self._digests = array("Q")
        self._ids = RunIds()
        self._template: CallTemplate | None = None
        self._can_compare = True
        self._is_whole = True
        self._rest_fails = False
        self._run = _RunKind.FIRST
        self._at = 0  # events of this run
        self.made_again = 0  # events that the client had, and that were made once more
        self._before = 0  # tokens that the client had when it began
        self._run_began: float | None = None  # with its first event
        self._taken = 0.0  # seconds from there to the last one, in the longest run

    def in_pieces(self) -> None:
        """Part of an event comes: no other run can be joined to that. Raises OtherAnswer in another run."""
        self._cannot_join("one of its events is too long")

    def template_question(self, body: bytes) -> bytes | None:
        """What `/apply-template` is to be asked before `next_request`; `template_says` takes the answer.

        None: nothing more. Reads all that was sent, some 30 ms for 1000 tokens: for a thread.
        """
        if self._template is None:
            self._read_first()
            asked = self._asked(body)
            if self._sent is not None and asked is not None and self._may_ask_for_the_rest(asked):
                self._template = unwritten_calls(asked, self._sent)
        return None if self._template is None else self._template.question()

    def template_says(self, prompt: str) -> None:
        """Empty where there is no answer. For a thread."""
        if self._template is not None:
            self._template.answer(prompt)

    def next_request(self, body: bytes) -> bytes | None:
        """What llama-server is to be asked now, in place of `body`; None where nothing can be joined.

        Reads all that was sent, as `template_question` does.
        """
        self._read_first()
        template, self._template = self._template, None
        self._at, self._run_began = 0, None
        self._ids.next_run()
        asked = self._asked(body)
        rest = None
        if asked is not None and self._sent is not None and self._may_ask_for_the_rest(asked):
            self._sent.written = template.written if template is not None else None
            rest = continued(asked, self._sent)
        if rest is not None and self._sent is not None:
            self._run, self._before = _RunKind.REST, self._sent.count
            self._sent.goes_on()
            return json.dumps(rest).encode()
        self._run = _RunKind.SAME
        return body if self._is_whole and self._can_compare else None

    def _asked(self, body: bytes) -> dict[str, object] | None:
        if not self._is_whole or self._sent is None:
            return None
        asked: object = json.loads(body)  # of others it may be no JSON
        return asked if isinstance(asked, dict) else None

    def _may_ask_for_the_rest(self, asked: Mapping[str, object]) -> bool:
        return not self._rest_fails and not (self._can_compare and self._is_to_be_the_same(asked))

    def rest_is_refused(self, why: str) -> None:
        """By llama-server. Raises OtherAnswer where the same can be asked for instead."""
        if self._run is _RunKind.REST and self._can_compare:
            self._rest_fails = True
            raise OtherAnswer(why)

    def _is_to_be_the_same(self, asked: Mapping[str, object]) -> bool:
        """Although the rest could be had, which is sooner there."""
        return not self._own_seed if is_sampled(asked) else self._taken <= MOST_AGAIN_SECONDS

    def unsent(self, events: bytes, now: float) -> bytes:
        """Of these whole events, which came `now`, what the client lacks. Raises OtherAnswer."""
        self._run_began = now if self._run_began is None else self._run_began
        self._taken = max(self._taken, now - self._run_began)
        if self._run is _RunKind.FIRST:
            if self._is_whole and not self._first.add(events):
                self._is_whole, self._first = False, KeptEvents()
            return events
        return self._read(events)

    def run_ended(self) -> None:
        """Raises OtherAnswer when the client has more than that."""
        if self._run is _RunKind.SAME and self._at < len(self._digests):
            self._differs("it was shorter")

    def _read_first(self) -> None:
        if self._run is not _RunKind.FIRST:
            return
        first, self._first = self._first, KeptEvents()
        splitter = EventSplitter(held_bytes=2 * EVENT_BYTES)  # the longest came with the end of a read
        for piece in first.read():
            if self._is_whole:
                self._read(splitter.feed(piece))

    def _read(self, events: bytes) -> bytes:
        try:
            return b"".join(self._one(event) for event in whole_events(events))
        except RecursionError:  # who answers may be another node, and say anything
            self._cannot_join("one of its events is nested too deeply")
            return events

    def _cannot_join(self, what: str) -> None:
        self._is_whole = False
        if self._run is not _RunKind.FIRST:
            raise OtherAnswer(what)

    def _one(self, event: bytes) -> bytes:
        data = b"\n".join(line.strip() for line in _DATA.findall(event))
        fields = _parsed(data) if data else None
        if not data or (isinstance(fields, dict) and _PROGRESS in fields):
            return event if self._run is _RunKind.FIRST else b""
        self._ids.know(event)
        if self._run is _RunKind.REST:
            return self._of_the_rest(event, fields)
        digest = _digest(data if fields is None else _lasting(fields))
        self._at += 1
        if self._at <= len(self._digests):
            if self._digests[self._at - 1] != digest:
                self._differs(f"its event {self._at} is another one")
            self.made_again = max(self.made_again, self._at)
            return b""
        self._can_compare = self._can_compare and len(self._digests) < ANSWER_EVENTS.most  # 1 MiB
        if self._can_compare:
            self._digests.append(digest)
        self._see(fields)
        return event if self._run is _RunKind.FIRST else self._ids.as_before(event)

    def _of_the_rest(self, event: bytes, fields: object) -> bytes:
        if not isinstance(fields, dict) or self._sent is None:
            return event
        try:
            as_sent = as_the_rest(fields, self._sent, self._before)
        except OtherAnswer:
            self._rest_fails = True
            raise
        if as_sent is None:
            return b""
        self._can_compare = False  # the same would not make this
        self._see(as_sent)
        if as_sent is not fields:
            data = b"data: " + json.dumps(as_sent).encode()
            event = _DATA.sub(lambda _: data, event, count=1)
        return self._ids.as_before(event)

    def _see(self, fields: object) -> None:
        if self._sent is not None and isinstance(fields, dict):
            self._sent.see(fields)

    def _differs(self, what: str) -> None:
        self._can_compare = False
        raise OtherAnswer(what)


def _parsed(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found


def _lasting(value: object) -> bytes:
    return json.dumps(_without_run(value), separators=(",", ":")).encode()


def _without_run(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_run(one) for name, one in value.items() if name not in _OF_A_RUN}
    if isinstance(value, list):
        return [_without_run(one) for one in value]
    return value


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest(), "little")
