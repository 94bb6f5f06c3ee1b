"""WebRTC between a browser and this node: offers of one browser, answered as those of nodes are.

What differs from a link of nodes: the sealed pipe has proven both ends before, and carries the offer, so that
there is no proof inside; and what comes out is a channel.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from meshd.identity.keys import PeerId
from meshd.link.ice.links import Attempt, IcePipe
from meshd.link.interface import Accept
from meshd.link.webrtc.links import WebRtcLinks
from meshd.wire.signal import Offer

if TYPE_CHECKING:
    from meshd.link.webrtc.session import Identity, WebRtcSession


class BrowserMeetings(WebRtcLinks):
    """Answers the offers of one browser; `serve` must run. `on_channel` gets the pipe of each that succeeds,
    and keeps it as long as it lives.
    """

    _shared: ClassVar["Identity | None"] = None  # one for all browsers of this process
    on_channel: Callable[[IcePipe], Awaitable[None]]
    under_way = 0
    on_idle: Callable[[], None] = staticmethod(lambda: None)

    async def _session(self, *, dialler: bool, user: str, password: str) -> "WebRtcSession":
        self._identity = BrowserMeetings._shared
        session = await super()._session(dialler=dialler, user=user, password=password)
        BrowserMeetings._shared = self._identity
        return session

    async def _welcome(self, peer: PeerId, offer: Offer, accept: Accept) -> None:
        self.under_way += 1
        try:
            await super()._welcome(peer, offer, accept)
        finally:
            self.under_way -= 1
            self.on_idle()

    async def _greet(self, attempt: Attempt, pipe: IcePipe, accept: Accept) -> Callable[[], Awaitable[None]]:
        return partial(self.on_channel, pipe)
