"""The addresses that peers announce, and those that this node may dial (wire/dialable.py has the rules)."""

import functools
import ipaddress
import time
from collections.abc import Callable, Sequence

from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity.invite import RelayHint
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.identity.relay_url import parse_relay_url
from meshd.rendezvous.book import AddressBook
from meshd.wire.address import Address, Candidate
from meshd.wire.dialable import Dialable, Here, Source, dialable
from meshd.wire.netfacts import CAPABILITY, NetFacts

HERE_SECONDS = 1.0  # for which the answer of the kernel counts: each plan of each peer's dials asks
MAX_MEMBERS_ASKED = 4  # of those that have a public address, how a port of ours is seen
MAX_JUDGED = 512  # lists of addresses whose verdict is remembered, 32 addresses each at most


class Places:
    """The addresses of peers. `look` returns this machine's networks; `local_only`: no member is asked."""

    def __init__(self, book: AddressBook, *, look: Callable[[], Here], local_only: bool) -> None:
        self._book = book
        self._look = look
        self._local_only = local_only
        self._seen = Here()
        self._seen_until = 0.0

    def moved(self) -> None:
        """Look at this machine's addresses again: they may have changed."""
        self._seen_until = 0.0

    def may_dial(self, peer: PeerId, candidates: Sequence[Candidate], source: Source) -> Sequence[Dialable]:
        """Return the addresses of a peer that may be dialled, as link.interface.MayDial."""
        return _judged(tuple(candidates), source, self._here(), frozenset(self._claims_of(peer)))

    def of_relay(self, candidates: Sequence[Candidate]) -> Sequence[Dialable]:
        """Return the diallable addresses of a relay that only a peer's record names."""
        return dialable(candidates, source=Source.RECORD, here=self._here())

    def relays_of(self, peer: PeerId) -> tuple[RelayHint, ...]:
        """Return the relays that its record names."""
        record = self._book.record(peer)
        hints = []
        for url in record.relays if record is not None else ():
            try:
                hints.append(parse_relay_url(url))
            except UserError:
                continue
        return tuple(hints)

    def issuer_of(self, peer: PeerId) -> Admitter | None:
        """Return who admitted it, as its record says."""
        record = self._book.newest(peer)
        return record.chain.admitter if record is not None else None

    def facts_of(self, peer: PeerId) -> NetFacts | None:
        """Return the facts of its network in its record; None if there are none."""
        record = self._book.record(peer)
        try:
            return NetFacts.from_text(record.capabilities.get(CAPABILITY, "")) if record is not None else None
        except RemoteProtocolError:
            return None

    def tcp_servers(self, relays: Sequence[str], stun: Sequence[str]) -> tuple[str, ...]:
        """Return servers that see a TCP port of ours: relays, public members, STUN servers (few
        speak TCP).
        """
        return (*relays, *self._stun_members(), *stun)

    def _stun_members(self) -> list[str]:
        """Return mesh ports of members that can be reached from anywhere."""
        if self._local_only:
            return []
        found = [
            place.place
            for record in self._book.records()
            if not record.has_left
            for place in self.may_dial(record.peer, record.candidates, Source.RECORD)
            if _answers_stun(place)
        ]
        return found[:MAX_MEMBERS_ASKED]

    def _here(self) -> Here:
        now = time.monotonic()
        if now >= self._seen_until:
            self._seen = self._look()
            self._seen_until = now + HERE_SECONDS
        return self._seen

    def _claims_of(self, peer: PeerId) -> set[Address]:
        """Return every address by which the record of `peer` says it can be reached."""
        record, facts = self._book.record(peer), self.facts_of(peer)
        claimed = {candidate.ip for candidate in record.candidates} if record is not None else set()
        if facts is not None and facts.public_v4:
            claimed.add(ipaddress.ip_address(facts.public_v4))
        return claimed


@functools.lru_cache(maxsize=MAX_JUDGED)
def _judged(
    candidates: tuple[Candidate, ...], source: Source, here: Here, claims: frozenset[Address]
) -> tuple[Dialable, ...]:
    """Judge the candidates. Cached: an unreachable peer is planned for again and again, with the same
    addresses.
    """
    return tuple(dialable(candidates, source=source, here=here, claims=claims))


def _answers_stun(candidate: Candidate) -> bool:
    """Return True if it may be the mesh port of a member that can be reached from anywhere, in IPv4."""
    public = candidate.ip.is_global and candidate.kind in ("host", "mapped")
    return public and candidate.proto == "tcp" and not candidate.is_v6
