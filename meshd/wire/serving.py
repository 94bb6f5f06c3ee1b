"""The message by which a head tells members which models its API serves, and how busy each is.

A member that may use the mesh opens a stream of service `serving` and sends nothing. The head writes what it
serves (ServingTold), and again whenever that has changed. Requests go over streams of service `api`.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_API_SLOTS,
    MAX_MODEL_NAME_BYTES,
    MAX_SERVED_ALIASES,
    MAX_SERVED_MODELS,
    MAX_SERVED_REASON_BYTES,
)
from meshd.wire.message import Fields, pack, plain, unpack

SERVING_SERVICE = "serving"
API_SERVICE = "api"
KEY_PROOF = "key"  # metadata of a stream of service `api`
_STATE_BYTES = 16
_WEIGHTS_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApiModel:
    """A model of a head's API; the first is its default. `takes`: requests for it are accepted now, though it
    may have to be loaded for them; `reason` says why in other states. `aliases`: other names in requests.

    `requests` are under way, `slots` of them are answered at once. `fingerprint` (of its weights) is empty
    until it is known.
    """

    name: str
    state: str
    takes: bool
    reason: str = ""
    requests: int = 0
    slots: int = 1
    fingerprint: bytes = b""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingTold:
    """All that a head serves. `asks_key`: a member needs one of its API keys, too."""

    models: tuple[ApiModel, ...]
    asks_key: bool = False

    def encode(self) -> bytes:
        rows = [_row(model) for model in self.models[:MAX_SERVED_MODELS]]
        return pack({"type": "serving", "models": rows, "key": self.asks_key})


def decode(data: bytes) -> ServingTold:
    """One message. Raises RemoteProtocolError."""
    fields = unpack(data)
    if (kind := fields.text("type", most=16)) != "serving":
        raise RemoteProtocolError(f"serving message of unknown type `{kind}`", code="message")
    models = tuple(map(_model, fields.maps("models", count=MAX_SERVED_MODELS)))
    if len({model.name for model in models}) != len(models):
        raise RemoteProtocolError("field `models` names a model twice", code="message")
    return ServingTold(models, fields.flag("key"))


def _row(model: ApiModel) -> dict[str, str | int | bytes | bool | list[str]]:
    return {
        "name": plain(model.name, MAX_MODEL_NAME_BYTES),
        "state": plain(model.state, _STATE_BYTES),
        "takes": model.takes,
        "reason": plain(model.reason, MAX_SERVED_REASON_BYTES),
        "requests": min(model.requests, MAX_API_SLOTS),
        "slots": min(max(1, model.slots), MAX_API_SLOTS),
        "fingerprint": model.fingerprint,
        "aliases": [plain(name, MAX_MODEL_NAME_BYTES) for name in model.aliases[:MAX_SERVED_ALIASES]],
    }


def _model(row: Fields) -> ApiModel:
    name = row.text("name", most=MAX_MODEL_NAME_BYTES)
    fingerprint = row.raw("fingerprint", most=_WEIGHTS_ID_BYTES)
    if not name or len(fingerprint) not in (0, _WEIGHTS_ID_BYTES):
        raise RemoteProtocolError("field `models` has an invalid model", code="message")
    return ApiModel(
        name=name,
        state=row.text("state", most=_STATE_BYTES),
        takes=row.flag("takes"),
        reason=row.text("reason", most=MAX_SERVED_REASON_BYTES),
        requests=row.number("requests", low=0, high=MAX_API_SLOTS),
        slots=row.number("slots", low=1, high=MAX_API_SLOTS),
        fingerprint=fingerprint,
        aliases=row.texts("aliases", most=MAX_MODEL_NAME_BYTES, count=MAX_SERVED_ALIASES),
    )
