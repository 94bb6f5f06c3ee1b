"""Which head answers a request. Pure.

Of the heads whose API has the model: one that is connected before one whose connection was lost a moment ago,
one without recent trouble, one that has it loaded before one that is loading it and one that would, then the
least busy, then the nearest.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshd.base.errors import BANNED_HINT
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.wire.serving import ApiModel, ServingTold

HEAD_AWAY_SECONDS = (
    5.0  # without a link: then a head is passed over, as links to others come back within that
)
HEAD_AVOIDED_SECONDS = 15.0  # after a request was lost or refused there
_MOST_SHOWN = 8  # reasons, or names of models, in a text: heads may have any number of them
_STEPS: Mapping[str, int] = {ModelState.READY: 0, ModelState.LOADING: 1}
_FAR = 3600.0  # round trip of a path that was not measured


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head as this node knows it.

    `told`: what it serves, None until it has said so, then `why_not` says why. `away_since`: the loop time at
    which its last link was lost; `rtt` in seconds; `mine`: requests of this node under way there.
    `says_banned`: its words where it holds this node for banned.
    """

    peer: PeerId
    name: str
    told: ServingTold | None = None
    why_not: str = ""
    away_since: float | None = None
    rtt: float | None = None
    mine: int = 0
    avoided_until: float = 0.0
    says_banned: str = ""

    def is_away(self, now: float) -> bool:
        """For so long that others take its place."""
        return self.away_since is not None and now - self.away_since >= HEAD_AWAY_SECONDS


@dataclass(frozen=True, slots=True)
class HeadOffer:
    """A model of a head."""

    head: KnownHead
    model: ApiModel

    @property
    def load(self) -> float:
        """Requests under way for each slot; those of this node that the head has not counted yet, too."""
        return max(self.model.requests, self.head.mine) / self.model.slots

    @property
    def steps_to_ready(self) -> int:
        """0 where the model is loaded, 1 while it is being loaded, else 2."""
        return _STEPS.get(self.model.state, 2)

    @property
    def is_default(self) -> bool:
        """The head answers with it when no model is named."""
        return self.head.told is not None and self.model is self.head.told.models[0]

    def is_called(self, name: str) -> bool:
        """Whether a request for that model may mean it; an empty name means any."""
        return name in ("", self.model.name, *self.model.aliases)


@dataclass(frozen=True, slots=True)
class HeadWish:
    """What a request wants: a model by name or alias, empty for the default of any head; `fingerprint`:
    exactly these weights, if not empty. `without`: heads that it was lost at."""

    model: str = ""
    fingerprint: bytes = b""
    without: frozenset[PeerId] = frozenset()


def model_names(heads: Sequence[KnownHead], now: float) -> list[str]:
    """Of all models that can be asked for now, each once."""
    return sorted({offer.model.name for offer in _offers(heads, now) if offer.model.takes})


def models_and_heads(heads: Sequence[KnownHead], now: float) -> list[str]:
    """The same for people, with the nodes that serve them."""
    served: dict[str, list[str]] = {name: [] for name in model_names(heads, now)}
    for offer in _offers(heads, now):
        if offer.model.takes and offer.head.name not in served[offer.model.name]:
            served[offer.model.name].append(offer.head.name)
    return [f"{name} on {shortened(sorted(nodes), ' and ')}" for name, nodes in served.items()]


def find_model(heads: Sequence[KnownHead], asked: str, now: float) -> str | None:
    """The name to ask for: where all serve one model it is meant by any name; None: nobody serves that."""
    offers = list(_offers(heads, now))
    if any(offer.is_called(asked) for offer in offers) or not asked:
        return asked
    names = {offer.model.name for offer in offers}
    return names.pop() if len(names) == 1 else None


def choose_head(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> HeadOffer | None:
    """The head that takes the request now; None: none does."""
    fit = [
        offer for offer in _wanted(heads, wish, now) if offer.model.takes and (wish.model or offer.is_default)
    ]
    return min(fit, key=lambda offer: _rank(offer, now), default=None)


def may_come(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> bool:
    """Whether some head is on its way to serve it."""
    return any(offer.model.state != ModelState.FAILED for offer in _wanted(heads, wish, now))


def told_fingerprint(heads: Sequence[KnownHead], offer: HeadOffer) -> bytes:
    """Of the weights of an offer, by what its head says by now; empty if it does not say."""
    said = [head.told for head in heads if head.peer == offer.head.peer and head.told is not None]
    same = (model for told in said for model in told.models if model.name == offer.model.name)
    return next((model.fingerprint for model in same), b"")


def why_none(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> tuple[ModelState, str]:
    """The state of what is wanted where no head takes it, and the reasons of all heads that are known."""
    if not heads:
        return ModelState.WAITING, "no member of the mesh serves a model: run `meshd serve` on one"
    reasons = [text for head in heads for text in _why_not(head, wish, now)]
    states = {offer.model.state for offer in _wanted(heads, wish, now)}
    judge = next((head for head in heads if head.says_banned), None)
    if judge is not None and not states:  # no head will take it, however long it waits
        why = f"this node is banned, according to `{judge.name}`: {judge.says_banned}"
        return ModelState.FAILED, f"{why} ({BANNED_HINT})"
    state = next((one for one in (ModelState.LOADING, ModelState.FAILED) if one in states), None)
    return state or ModelState.WAITING, shortened(reasons, "; ") or "no head serves it now"


def shortened(texts: Sequence[str], between: str) -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return between.join([*texts[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _why_not(head: KnownHead, wish: HeadWish, now: float) -> list[str]:
    if head.peer in wish.without:
        return []
    if head.is_away(now):
        return [f"the connection to `{head.name}` is lost"]
    if head.told is None:
        return [f"`{head.name}`: {head.why_not or 'has not said yet what it serves'}"]
    if not head.told.models:
        return [f"`{head.name}` serves nothing"]
    offers = [HeadOffer(head, model) for model in head.told.models]
    said = [offer.model for offer in offers if offer.is_called(wish.model) and not offer.model.takes]
    return [f"`{model.name}` on `{head.name}` is {model.state}: {model.reason}" for model in said]


def _wanted(heads: Sequence[KnownHead], wish: HeadWish, now: float) -> Iterator[HeadOffer]:
    for offer in _offers(heads, now, wish.without):
        if offer.is_called(wish.model) and wish.fingerprint in (b"", offer.model.fingerprint):
            yield offer


def _offers(heads: Sequence[KnownHead], now: float, without: Collection[PeerId] = ()) -> Iterator[HeadOffer]:
    for head in heads:
        if head.told is None or head.peer in without or head.is_away(now):
            continue
        for model in head.told.models:
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
