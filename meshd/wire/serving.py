"""The message by which a head tells members which models its API serves, and how busy each is.

A member that may use the mesh opens a stream of service `serving` and sends nothing. The head writes what it
serves (ServingTold), and again whenever that has changed. Requests go over streams of service `api`.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import NEEDED, Between, Check, Items, Name, Size, Text
from meshd.wire.codec import Family, Message
from meshd.wire.limits import (
    MAX_API_SLOTS,
    MAX_MODEL_NAME_BYTES,
    MAX_SERVED_ALIASES,
    MAX_SERVED_MODELS,
    MAX_SERVED_REASON_BYTES,
)

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

    name: Annotated[str, Text(MAX_MODEL_NAME_BYTES, least=1, cut=True)]
    state: Annotated[str, Text(_STATE_BYTES, cut=True)]
    takes: bool
    reason: Annotated[str, Text(MAX_SERVED_REASON_BYTES, cut=True), NEEDED] = ""
    requests: Annotated[int, Between(0, MAX_API_SLOTS, clamp=True), NEEDED] = 0
    slots: Annotated[int, Between(1, MAX_API_SLOTS, clamp=True), NEEDED] = 1
    fingerprint: Annotated[bytes, Size(0, _WEIGHTS_ID_BYTES), NEEDED] = b""
    aliases: Annotated[
        tuple[Annotated[str, Text(MAX_MODEL_NAME_BYTES, cut=True)], ...],
        Items(MAX_SERVED_ALIASES, cut=True),
        NEEDED,
    ] = ()


_NAMED_ONCE = Check(
    lambda models: len({model.name for model in models}) == len(models), "a list that names no model twice"
)


@dataclass(frozen=True, slots=True)
class ServingTold(Message, tag="serving"):
    """All that a head serves. `asks_key`: a member needs one of its API keys, too."""

    models: Annotated[tuple[ApiModel, ...], Items(MAX_SERVED_MODELS, cut=True), _NAMED_ONCE]
    asks_key: Annotated[bool, Name("key"), NEEDED] = False


_SERVING: Family[ServingTold] = Family("serving", ServingTold)


def decode(data: bytes) -> ServingTold:
    """Read one message. Raises RemoteProtocolError."""
    return _SERVING.decode(data)
