"""Status of a peer's links."""

from typing import cast

import pytest
from meshd.link.interface import Link, LinkInfo
from meshd.mux.session import Session
from meshd.mux.status import LinkStatus
from meshd.peer.link_driver import LinkDriver
from meshd.peer.links import PeerLinks

from tests.unit.admin.test_snapshot import NODE, path

NUMBER = 1


class OneLink:
    """As much of a driver, its link and its session as is asked."""

    def __init__(self, *, rate: float | None) -> None:
        self.link = cast(Link, self)
        self.info: LinkInfo = path(selected=True).link
        self.link_id = NUMBER
        self.session = cast(Session, self)
        self._numbers = LinkStatus(
            link_id=NUMBER,
            carries_data=True,
            rtt=0.03,
            rtt_min=0.02,
            rtt_floor=0.01,
            rate=rate,
            sent=10,
            received=20,
            last_heard=0.0,
            confirmed_at=0.0,
        )

    def link_up(self, _link_id: int, _now: float) -> list[object]:
        return []

    @property
    def data_link(self) -> int:
        return NUMBER

    def links(self) -> tuple[LinkStatus, ...]:
        return (self._numbers,)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("rate", [2.5e6, None])
def test_a_link_is_shown_as_its_session_sees_it(leads: bool, rate: float | None) -> None:
    links = PeerLinks(peer=NODE.peer, leads=leads, now=lambda: 1.0)
    one = OneLink(rate=rate)
    links.attach(cast(LinkDriver, one))
    links.choose(one.session)
    [status] = links.statuses(one.session)
    assert (status.rate, status.rtt, status.rtt_min) == (rate, 0.03, 0.02)
