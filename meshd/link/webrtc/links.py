"""Links over WebRTC's transports: ICE finds a path through NATs, DTLS encrypts it, SCTP makes it reliable.

aiortc and its relatives are imported at the first dial or offer, in a thread: 15 MB and a fifth of a second.
"""

import asyncio
from typing import TYPE_CHECKING

from meshd.link.ice.links import IceLinks
from meshd.link.interface import LinkKind, Transport

if TYPE_CHECKING:
    from meshd.link.webrtc.session import Identity, WebRtcSession


class WebRtcLinks(IceLinks):
    """Makes and takes in webrtc links, as `IceLinks` says."""

    transport = Transport.WEBRTC
    kind = LinkKind.WEBRTC
    _identity: "Identity | None" = None

    async def _session(self, *, dialler: bool, user: str, password: str) -> "WebRtcSession":
        await asyncio.to_thread(_load)
        from meshd.link.webrtc.session import Identity, WebRtcSession  # on demand

        if self._identity is None:
            self._identity = Identity()
        return WebRtcSession(self._identity, dialler=dialler, user=user, password=password)


def _load() -> None:
    """Import what this kind needs; the first time takes a third of a second."""
    import meshd.link.webrtc.session  # noqa: F401  # on demand
