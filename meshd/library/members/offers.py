"""Decide which of the members' models a name means. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.identity.keys import PeerId
from meshd.model.gguf_names import GGUF_SUFFIX, SHARD, GgufFile, GgufModel, choose, is_model
from meshd.model.model_name import (
    DEMO,
    DEMO_STEM,
    HUB,
    LEAST_FINGERPRINT_DIGITS,
    OLLAMA,
    BareName,
    HubName,
    MeshName,
    ModelName,
    is_file_name,
    parse_model_name,
    stem_of_ollama,
)
from meshd.model.short_names import SHORT_NAMES, stem_of
from meshd.wire.models import ToldModel

_LISTED = 8  # models listed in an error


@dataclass(frozen=True, slots=True)
class MemberOffer:
    """A `model` of `peer`, which people call `node`."""

    peer: PeerId
    node: str
    model: ToldModel

    @property
    def stem(self) -> str:
        """The name for the files here; empty if the model's name is not valid for a model's file."""
        name = self.model.names[0]
        file = name + GGUF_SUFFIX
        return name if is_file_name(name) and is_model(file) and not SHARD.fullmatch(file) else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that find the model: `stem`, then those with a scheme.

        Any other name would let a member be found under one name, and leave its file here under another.
        """
        return (self.stem, *filter(self._is_own, self.model.names[1:]))

    def _is_own(self, name: str) -> bool:
        return name.startswith(HUB) or (name.startswith(OLLAMA) and stem_of_ollama(name) == self.stem)


def fitting_offers(
    name: ModelName, offers: Iterable[MemberOffer], *, by_content: bool = True
) -> list[MemberOffer]:
    """Return the offers that `name` means, of one or several members; empty if no member has it.

    All are of one model, as far as the members report. Digits are never a name; everything that begins with
    these digits is one model, whatever else is reported about it, until the received bytes show which members
    lie. `by_content`: the digits may be of a content id as well as of a fingerprint. Raises UserError for a
    name that means several models.
    """
    usable = [offer for offer in offers if offer.stem]
    if isinstance(name, MeshName) and (digits := name.fingerprint):
        return [one for one in usable if _has_digits(one.model, digits, by_content=by_content)]
    if isinstance(name, HubName):
        return _one_of(str(name), _of_hub(name, usable))
    words = _words_for(name)
    return _one_of(str(name), [one for one in usable if words & {word.lower() for word in one.names}])


def digits_of(model: ToldModel) -> str:
    """Return the digits that identify the model; empty if its owner has not read it yet."""
    return (model.fingerprint or model.content).hex()


def _has_digits(model: ToldModel, digits: str, *, by_content: bool) -> bool:
    told = (model.fingerprint, model.content) if by_content else (model.fingerprint,)
    return any(one.hex().startswith(digits) for one in told)


def _words_for(name: ModelName) -> set[str]:
    text = (name.text if isinstance(name, MeshName) else str(name)).lower().removesuffix(GGUF_SUFFIX)
    if not isinstance(name, BareName):
        return {text}
    if text == DEMO:
        return {DEMO_STEM.lower()}
    if (known := SHORT_NAMES.get(text)) is not None:
        return {str(known).lower(), stem_of(known).lower()}
    return {text, f"ollama:{text}"}


def _of_hub(name: HubName, offers: Sequence[MemberOffer]) -> list[MemberOffer]:
    """Choose among offers of the same repository as among its files: a quantisation, a file, or the usual."""
    stems: dict[str, list[MemberOffer]] = {}
    models: dict[str, GgufModel] = {}
    for offer in offers:
        for word in offer.names[1:]:
            told = _parsed(word)
            if isinstance(told, HubName) and told.repository.lower() == name.repository.lower():
                low = offer.stem.lower()
                stems.setdefault(low, []).append(offer)
                named = told.choice.lower().endswith(GGUF_SUFFIX)
                file = told.choice if named else offer.stem + GGUF_SUFFIX
                files = (GgufFile(file, offer.model.size),)
                models.setdefault(low, GgufModel(offer.stem, offer.model.quant.upper(), files))
    chosen = choose(list(models.values()), name.choice)
    return [offer for model in chosen for offer in stems[model.name.lower()]]


def _parsed(word: str) -> ModelName | None:
    try:
        return parse_model_name(word)
    except ValueError:
        return None


def _one_of(text: str, found: list[MemberOffer]) -> list[MemberOffer]:
    """Return the offers. Raises UserError if some are certainly not the same file."""
    several = len({one.model.size for one in found}) > 1
    if several or len({one.model.fingerprint for one in found} - {b""}) > 1:
        kinds = {(one.model.size, one.model.fingerprint): one for one in found}
        raise ambiguous(text, list(kinds.values()))
    return found


def ambiguous(text: str, offers: Sequence[MemberOffer]) -> UserError:
    """Return the error for a name that means several models."""
    listed = ", ".join(
        f"`{one.stem}` of {one.node} ({in_bytes(one.model.size)}"
        + (f", {digits[:LEAST_FINGERPRINT_DIGITS]})" if (digits := digits_of(one.model)) else ")")
        for one in offers[:_LISTED]
    )
    more = f" and {len(offers) - _LISTED} more" if len(offers) > _LISTED else ""
    return UserError(
        f"`{text}` means different models of members: {listed}{more}",
        hint="name one by its fingerprint: `meshd model pull mesh:FINGERPRINT` (`meshd model ls --json` "
        "shows them; `meshd model verify NAME` on that node computes one)",
    )
