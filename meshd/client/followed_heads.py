"""Which of the heads of a mesh a client asks, where there are more than it follows. Pure."""

from collections.abc import Collection, Hashable, Iterable

from meshd.base.peer_limits import HEADS_FOLLOWED, HEADS_FOLLOWED_OF_ISSUER
from meshd.identity.keys import PeerId


def heads_to_follow(
    heads: Iterable[tuple[PeerId, Hashable]], followed: Collection[PeerId]
) -> frozenset[PeerId]:
    """Of each invite or inviter (the second of each pair) as many as of any other, while it has more.

    So those of a few invites, however early they come, keep no others out. Among equals, those that are
    followed stay.
    """
    shares: dict[Hashable, list[PeerId]] = {}
    for peer, issuer in sorted(heads, key=lambda one: one[0] not in followed):
        shares.setdefault(issuer, []).append(peer)
    ranked = [
        (place, peer not in followed, peer)
        for share in shares.values()
        for place, peer in enumerate(share[: HEADS_FOLLOWED_OF_ISSUER.most])
    ]
    ranked.sort(key=lambda one: one[:2])
    return frozenset(peer for _, _, peer in ranked[: HEADS_FOLLOWED.most])
