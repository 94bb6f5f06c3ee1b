"""Choose the heads that a client follows, and the one that answers a request. Pure.

Only heads whose API has the model count. The order is: connected before lost a moment ago, no recent trouble,
the model loaded before loading before not loaded, then the least busy, then the nearest.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshd.base.errors import BANNED_HINT
from meshd.base.peer_limits import HEADS_FOLLOWED, HEADS_FOLLOWED_OF_ISSUER
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.wire.models import ApiModel, ServingTold

# Without a link a head is passed over from then on, as links to other heads come back within that time.
HEAD_AWAY_SECONDS = 5.0
HEAD_AVOIDED_SECONDS = 15.0  # after a head has lost or refused a request
_MOST_SHOWN = 8  # reasons, or names of models, in a text: heads may have any number of them
_STEPS: Mapping[str, int] = {ModelState.READY: 0, ModelState.LOADING: 1}
_FAR = 3600.0  # assumed round trip of a path that was not measured, in seconds


def heads_to_follow(
    heads: Iterable[tuple[PeerId, Hashable]], followed: Collection[PeerId]
) -> frozenset[PeerId]:
    """Choose heads to follow, so that each invite or inviter gets the same share.

    The second of each pair is the invite or inviter. The heads of a few invites keep no others out, however
    early they come. Among equals, heads that are already followed stay.
    """
    shares: dict[Hashable, list[PeerId]] = {}
    for peer, issuer in sorted(heads, key=lambda head: head[0] not in followed):
        shares.setdefault(issuer, []).append(peer)
    ranked = [
        (place, peer not in followed, peer)
        for share in shares.values()
        for place, peer in enumerate(share[: HEADS_FOLLOWED_OF_ISSUER.most])
    ]
    ranked.sort(key=lambda row: row[:2])
    return frozenset(peer for _, _, peer in ranked[: HEADS_FOLLOWED.most])


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head as this node knows it.

    `serving`: what the head serves, None until it has reported it; then `why_not` says why. `away_since`: the
    loop time at which its last link was lost; `rtt` in seconds; `mine`: requests of this node under way
    there. `says_banned`: the head's message if it considers this node banned.
    """

    peer: PeerId
    name: str
    serving: ServingTold | None = None
    why_not: str = ""
    away_since: float | None = None
    rtt: float | None = None
    mine: int = 0
    avoided_until: float = 0.0
    says_banned: str = ""

    def is_away(self, now: float) -> bool:
        """Say whether the head has been away for so long that others take its place."""
        return self.away_since is not None and now - self.away_since >= HEAD_AWAY_SECONDS


@dataclass(frozen=True, slots=True)
class HeadOffer:
    """A model of a head."""

    head: KnownHead
    model: ApiModel

    @property
    def load(self) -> float:
        """The requests under way per slot, including those of this node that the head has not counted yet."""
        return max(self.model.requests, self.head.mine) / self.model.slots

    @property
    def steps_to_ready(self) -> int:
        """The steps until the model is ready: 0 if loaded, 1 while loading, else 2."""
        return _STEPS.get(self.model.state, 2)

    @property
    def is_default(self) -> bool:
        """True if the head answers with this model when a request names none."""
        return self.head.serving is not None and self.model is self.head.serving.models[0]

    def is_called(self, name: str) -> bool:
        """Say whether a request for model `name` may mean this one; an empty name means any."""
        return name in ("", self.model.name, *self.model.aliases)


@dataclass(frozen=True, slots=True)
class HeadWish:
    """The demands of a request on a head.

    `model` is a name or alias, empty for the default of any head. `fingerprint`: exactly these weights, if
    not empty. `without`: heads that have lost the request.
    """

    model: str = ""
    fingerprint: bytes = b""
    without: frozenset[PeerId] = frozenset()


def model_names(heads: Sequence[KnownHead], now: float) -> list[str]:
    """Return the names of all models that take requests now, each once, sorted."""
    return sorted({offer.model.name for offer in _offers(heads, now) if offer.model.takes})


def models_and_heads(heads: Sequence[KnownHead], now: float) -> list[str]:
    """Return the names of these models with the nodes that serve each, as text for people."""
    served: dict[str, list[str]] = {name: [] for name in model_names(heads, now)}
    for offer in _offers(heads, now):
        if offer.model.takes and offer.head.name not in served[offer.model.name]:
            served[offer.model.name].append(offer.head.name)
    return [f"{name} on {shortened(sorted(nodes), ' and ')}" for name, nodes in served.items()]


def find_model(heads: Sequence[KnownHead], asked: str, now: float) -> str | None:
    """Return the model name to request, or None if no head serves it.

    If all heads serve the same single model, any name means it.
    """
    offers = list(_offers(heads, now))
    if any(offer.is_called(asked) for offer in offers) or not asked:
        return asked
    names = {offer.model.name for offer in offers}
    return names.pop() if len(names) == 1 else None


def choose_head(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> HeadOffer | None:
    """Return the head that takes the request now, or None."""
    fit = [
        offer for offer in _wanted(heads, wish, now) if offer.model.takes and (wish.model or offer.is_default)
    ]
    return min(fit, key=lambda offer: _rank(offer, now), default=None)


def may_come(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> bool:
    """Say whether some head may soon serve the request."""
    return any(offer.model.state != ModelState.FAILED for offer in _wanted(heads, wish, now))


def told_fingerprint(heads: Sequence[KnownHead], offer: HeadOffer) -> bytes:
    """Return the fingerprint of an offer's weights, as its head reports it by now; empty if it does not."""
    served = [head.serving for head in heads if head.peer == offer.head.peer and head.serving is not None]
    same = (model for serving in served for model in serving.models if model.name == offer.model.name)
    return next((model.fingerprint for model in same), b"")


def why_none(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> tuple[ModelState, str]:
    """Return the state of the wanted model if no head takes it, with the reasons of all known heads."""
    if not heads:
        return ModelState.WAITING, "no member of the mesh serves a model: run `meshd serve` on one"
    reasons = [text for head in heads for text in _why_not(head, wish, now)]
    # A head that has the model decides the state; a ban counts only if there is none.
    states = {offer.model.state for offer in _wanted(heads, wish, now)}
    judge = next((head for head in heads if head.says_banned), None)
    if judge is not None and not states:  # no head will take the request, however long it waits
        why = f"this node is banned, according to `{judge.name}`: {judge.says_banned}"
        return ModelState.FAILED, f"{why} ({BANNED_HINT})"
    state = next(
        (candidate for candidate in (ModelState.LOADING, ModelState.FAILED) if candidate in states), None
    )
    return state or ModelState.WAITING, shortened(reasons, "; ") or "no head serves it now"


def shortened(texts: Sequence[str], between: str) -> str:
    """Join the first texts, and say how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return between.join([*texts[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _why_not(head: KnownHead, wish: HeadWish, now: float) -> list[str]:
    if head.peer in wish.without:
        return []
    if head.is_away(now):
        return [f"the connection to `{head.name}` is lost"]
    if head.serving is None:
        return [f"`{head.name}`: {head.why_not or 'has not said yet what it serves'}"]
    if not head.serving.models:
        return [f"`{head.name}` serves nothing"]
    offers = [HeadOffer(head, model) for model in head.serving.models]
    called = [offer.model for offer in offers if offer.is_called(wish.model) and not offer.model.takes]
    return [f"`{model.name}` on `{head.name}` is {model.state}: {model.reason}" for model in called]


def _wanted(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> Iterator[HeadOffer]:
    for offer in _offers(heads, now, wish.without):
        if offer.is_called(wish.model) and wish.fingerprint in (b"", offer.model.fingerprint):
            yield offer


def _offers(heads: Sequence[KnownHead], now: float, without: Collection[PeerId] = ()) -> Iterator[HeadOffer]:
    for head in heads:
        if head.serving is None or head.peer in without or head.is_away(now):
            continue
        for model in head.serving.models:
            yield HeadOffer(head, model)


def _rank(offer: HeadOffer, now: float) -> tuple[bool, bool, int, float, float, bytes]:
    head = offer.head
    return (
        head.away_since is not None,
        now < head.avoided_until,
        offer.steps_to_ready,
        offer.load,
        _FAR if head.rtt is None else head.rtt,
        head.peer.raw,
    )
