"""Choose the heads that a client follows, if there are more than it can follow. Pure."""

from collections.abc import Collection, Hashable, Iterable

from meshd.base.peer_limits import HEADS_FOLLOWED, HEADS_FOLLOWED_OF_ISSUER
from meshd.identity.keys import PeerId


def heads_to_follow(
    heads: Iterable[tuple[PeerId, Hashable]], followed: Collection[PeerId]
) -> frozenset[PeerId]:
    """Choose heads to follow, so that each invite or inviter gets the same share.

    The second of each pair is the invite or inviter. The heads of a few invites keep no others out, however
    early they come. Among equals, heads that are already followed stay.
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
