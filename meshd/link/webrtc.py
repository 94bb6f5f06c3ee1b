"""Links over WebRTC's transports: ICE finds a path through NATs, DTLS encrypts it, SCTP makes it reliable.

aiortc and its relatives are imported at the first dial or offer, in a thread: 50 MB and a third of a second.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from meshd.link.ice_links import MAX_ANSWERING_ONE, Extra, IceLinks, IcePipe, IceSession, stun_server
from meshd.link.interface import LinkKind

if TYPE_CHECKING:
    from meshd.link.webrtc_session import Identity, Session

__all__ = ["MAX_ANSWERING_ONE", "Extra", "WebRtcLinks", "stun_server"]


class WebRtcLinks(IceLinks):
    """Makes and takes in webrtc links, as `IceLinks` says."""

    _identity: "Identity | None" = None

    @property
    def kind(self) -> LinkKind:
        """WebRTC."""
        return LinkKind.WEBRTC

    async def _session(self, *, dialler: bool, user: str, password: str) -> "Session":
        await asyncio.to_thread(_load)
        from meshd.link.webrtc_session import Identity, Session  # on demand

        if self._identity is None:
            self._identity = Identity()
        return Session(self._identity, dialler=dialler, user=user, password=password)

    def _pipe(self, session: IceSession) -> IcePipe:
        from meshd.link.webrtc_pipe import WebRtcPipe  # on demand

        return WebRtcPipe(cast("Session", session))


def _load() -> None:
    """Import what this kind needs; the first time takes a third of a second."""
    import meshd.link.webrtc_pipe  # noqa: F401  # on demand
