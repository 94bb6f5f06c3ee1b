"""The ids of an answer, of which a later run has others: a client sees those of the first. Pure."""

import re
from collections import defaultdict

_MOST_IDS = 64  # of tool calls and parts of an answer
_ID = re.compile(rb'("(?:id|item_id|call_id|response_id)"\s*:\s*")([A-Za-z0-9_-]{8,100})"')
_CREATED = re.compile(rb'("created(?:_at)?"\s*:\s*)(\d{1,12})')
_KIND = re.compile(rb"[a-z]{1,12}[_-]")


class RunIds:
    """`know` of each event of each run, `next_run` before another one."""

    def __init__(self) -> None:
        # by what they begin with: behind reasoning a run has a new `msg_` first, in place of `rs_`
        self._first: dict[bytes, list[bytes]] = defaultdict(list)
        self._seen: dict[bytes, int] = defaultdict(int)  # of this run, of each kind
        self._before: dict[bytes, bytes] = {}  # those of the first run, by those of this one
        self._created = b""

    def next_run(self) -> None:
        self._seen.clear()
        self._before = {}

    def know(self, event: bytes) -> None:
        for _, one in _ID.findall(event):
            if one not in self._before and len(self._before) < _MOST_IDS:
                found = _KIND.match(one)
                kind = found[0] if found is not None else b""
                first, at = self._first[kind], self._seen[kind]
                if at == len(first):
                    first.append(one)
                self._before[one] = first[at]
                self._seen[kind] += 1
        if not self._created and (created := _CREATED.search(event)) is not None:
            self._created = created[2]

    def as_before(self, event: bytes) -> bytes:
        """This event with the ids and the time of the first run."""
        # each id once: one that is made of others must not grow by them
        event = _ID.sub(lambda found: found[1] + self._before.get(found[2], found[2]) + b'"', event)
        return _CREATED.sub(lambda found: found[1] + (self._created or found[2]), event)
