"""The links of a session: the attached ones, the one that carries data, and the time without any."""

from meshd.base.errors import LocalProtocolError
from meshd.mux.config import MuxConfig, Side
from meshd.mux.link import LinkState


class LinkTable:
    """A session's links by number. For the effect of a lost or changed link on streams, see state.py."""

    def __init__(self, side: Side, config: MuxConfig) -> None:
        self._leads = side == "leader"
        self._config = config
        self._linked_before = False
        self._next_ping = 1
        self.by_id: dict[int, LinkState] = {}
        self.data_link: int | None = None
        self.sequence = 0  # of the last Switch
        self.switches = 0
        self.grace_at: float | None = None  # the end of a session without links

    def rtt(self) -> float | None:
        """Return the round trip of the data link under load in seconds, if known."""
        link = self.by_id.get(self.data_link) if self.data_link is not None else None
        return None if link is None else (link.pacing.rtt_loaded or link.rtt)

    def best(self) -> int:
        """Return the best attached link; links known to be quick come first."""
        return min(self.by_id.values(), key=_order).link_id

    def new_ping(self) -> int:
        """Return a number for the next ping."""
        self._next_ping = self._next_ping % 0xFFFFFFFF + 1
        return self._next_ping

    def add(self, link_id: int, now: float) -> None:
        """Attach a link on which both Hellos have passed. Any but the first waits for the peer's Resume."""
        if link_id in self.by_id:
            raise LocalProtocolError(f"link {link_id} is attached already")
        self.grace_at = None
        link = LinkState(link_id, now, self._config)
        link.awaits_resume = self._linked_before
        self._linked_before = True
        self.by_id[link_id] = link

    def remove(self, link_id: int, now: float) -> bool:
        """Remove a lost link; True when it carried the data."""
        if self.by_id.pop(link_id, None) is None:
            return False
        if not self.by_id:
            self.grace_at = now + self._config.grace
        if link_id != self.data_link:
            return False
        self.data_link = None
        return True

    def carry_on(self, link_id: int) -> None:
        """Let this link carry data from now on; it begins with a Resume."""
        self.data_link = link_id
        self.switches += 1
        self.by_id[link_id].resume_due = True

    def lead_to(self, link_id: int) -> None:
        """Tell the peer, as the leader, to use this link."""
        if not self._leads:
            raise LocalProtocolError("only the leader says which link carries data")
        self.sequence += 1
        self.by_id[link_id].switch_due = self.sequence

    def follow(self, sequence: int) -> bool:
        """Accept the leader's choice; False: a newer one is known already."""
        if sequence <= self.sequence:
            return False
        self.sequence = sequence
        return True

    def say_lost(self) -> None:
        """Tell the leader, on every link, that the one that carried data is lost."""
        for link in self.by_id.values():
            link.lost_due = self.sequence

    def say_goodbye(self) -> None:
        """Queue a goodbye on every link."""
        for link in self.by_id.values():
            link.goodbye_due = True

    def end(self) -> None:
        """End the session; links may still carry its goodbye."""
        self.data_link = None
        self.grace_at = None


def _order(link: LinkState) -> tuple[bool, float, int]:
    return link.rtt is None, link.rtt or 0.0, link.link_id
