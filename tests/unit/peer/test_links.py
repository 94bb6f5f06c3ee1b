"""Status of a peer's links: a rate only where a link was seen full."""

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

    def __init__(self, *, in_flight: int, bandwidth: float | None) -> None:
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
            bandwidth=bandwidth,
            in_flight=in_flight,
            allowance=1000,
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
@pytest.mark.parametrize(
    ("in_flight", "bandwidth", "rate"), [(900, 2.5e6, 2.5e6), (100, 2.5e6, None), (900, None, None)]
)
def test_a_rate_is_known_where_the_link_was_the_bottleneck(
    leads: bool, in_flight: int, bandwidth: float | None, rate: float | None
) -> None:
    links = PeerLinks(peer=NODE.peer, leads=leads, now=lambda: 1.0)
    one = OneLink(in_flight=in_flight, bandwidth=bandwidth)
    links.attach(cast(LinkDriver, one))
    links.choose(one.session)
    [status] = links.statuses(one.session)
    assert (status.rate, status.rtt, status.rtt_min) == (rate, 0.03, 0.02)
