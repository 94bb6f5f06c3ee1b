"""The API of a serving node: an OpenAI-compatible proxy in front of llama-server, and a chat page.

The gateway reports true readiness, forwards streams unbuffered, checks keys and browser
headers, and turns a lost upstream into an error event. It knows an Upstream, never the mesh.
It must never keep an answer that the client does not read, nor a generation whose client is gone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from socket import socket
from typing import Protocol

from meshd.gateway.api_key import ApiKey
from meshd.model.device_sampling import DeviceSampling
from meshd.model.status import ModelState, ModelStatus, WorkerWeights


@dataclass(frozen=True, slots=True)
class Readiness:
    """State of the model now; `reason` in words; `retry_after` in seconds; progress in [0, 1] or None.

    `workers`: how far each is while the model is loaded. `no_room`: it has failed, or waits, for lack of
    memory, which other workers may bring.
    `note`: what clients are told whose answers go on.
    """

    state: ModelState
    reason: str
    retry_after: int = 5
    progress: float | None = None
    workers: tuple[WorkerWeights, ...] = ()
    no_room: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class AnswerTimings:
    """What llama-server says that an answer took; `prompt_tokens` without those that it had before.

    `drafted`: tokens that were guessed; `accepted`: those of them that are in the answer.
    """

    prompt_tokens: int
    prompt_seconds: float
    generated_tokens: int
    generated_seconds: float
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class ModelWish:
    """What a request says of who may answer it: its `model`, and the digests of the keys that it carries."""

    model: str = ""
    keys: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class MemberCaller:
    """A member that calls the API over a stream of the mesh. `key`: whose share its requests count in, and
    whose turn it is with them; None: it has shown none of the API keys that are asked for.
    """

    key: bytes | None = field(repr=False)


class Upstream(Protocol):
    """What the gateway needs to know of who answers: llama-server, or for one request another node's API."""

    @property
    def readiness(self) -> Readiness: ...

    @property
    def model_name(self) -> str:
        """Empty where a request leaves it to another node."""
        ...

    @property
    def slots(self) -> int | None:
        """Answers that it generates at a time; of a llama-server the last one's while none is loaded. None:
        requests do not wait here for their turn, who answers them has a queue."""
        ...

    @property
    def weights(self) -> bytes:
        """The fingerprint of the model's weights, or of those that an answer was begun with; empty while it
        is not known."""
        ...

    def keep_to(self, weights: bytes) -> None:
        """An answer was begun with these: nobody else may go on with it."""
        ...

    async def connect(self) -> socket:
        """A new connection, on which HTTP is spoken; the caller owns it. Raises OSError, MeshdError."""
        ...

    def is_refusal(self, status: int) -> bool:
        """Whether an answer with this status means: ask again, somebody else may take the request."""
        ...

    async def upstream_broke(self, why: str) -> str:
        """Told when a request found it gone, or of no use. Returns why, as far as it is known.

        New requests are refused from the call on; the reason may take a second.
        """
        ...

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """What decides which requests take candidates from a worker, or may ask it; None: nobody cares."""
        ...

    @property
    def holds_turns(self) -> str:
        """Why no more answers are to begin now: it waits for the end of the others; empty: they may."""
        ...

    def queued(self, waiting: int) -> None:
        """Told how many of the requests under way wait for their turn, when that has changed."""
        ...

    def requested(self, active: int) -> None:
        """Told when the number of requests under way has changed."""
        ...

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Told while an answer is streamed: it has `total` tokens by now, `grown` of them new.

        `alone`: no other is under way.
        """
        ...

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Told of a whole answer, `seconds` after its request came; `alone`: no other was under way."""
        ...


class ModelTurn(Protocol):
    """One request's use of a model: it waits in `begin`, and from then on the model stays until `end`."""

    @property
    def notice(self) -> str:
        """What it waits for, in words; empty when it does not wait."""
        ...

    async def begin(self) -> Readiness | None:
        """Wait until the model may be asked. Returns why not if it cannot be had, else None."""
        ...

    def end(self) -> None:
        """The request is over, or will not be made. Idempotent."""
        ...


class NamedModel(Protocol):
    """One of the models behind a gateway."""

    @property
    def upstream(self) -> Upstream: ...

    def turn(self) -> ModelTurn:
        """A request for it has come."""
        ...


class Models(Protocol):
    """The models behind a gateway: one that answers whatever the request names, several by name, or those
    of other nodes."""

    @property
    def all(self) -> Sequence[NamedModel]:
        """Those that can be asked for now: those of other nodes change."""
        ...

    @property
    def only(self) -> NamedModel | None:
        """The model of a gateway that has one; it is loaded, or about to be, whether or not anybody asks."""
        ...

    @property
    def on_demand(self) -> bool:
        """They are loaded here for requests, so all can be named at any time; one that cannot be had is not
        waited for."""
        ...

    @property
    def readiness(self) -> Readiness:
        """Of all together: READY while any of them may be asked for."""
        ...

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Who answers one request: by name or alias; the default for an empty name."""
        ...

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """Of models on demand, in the order of `all`."""
        ...


class MemberGate(Protocol):
    """The API as members of the mesh call it."""

    def requests_of(self, model: str) -> int:
        """Under way, or waiting for their turn."""
        ...

    @property
    def key_digests(self) -> Sequence[bytes]:
        """Of the API keys, one of which is asked for; empty: none is."""
        ...

    async def take(self, connection: socket, member: MemberCaller) -> None:
        """Answer on a connection that a member has made, which it owns from now on. Raises Broken."""
        ...


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """`port` 0 picks a free one; beyond loopback keys are demanded. `allowed_hosts` are extra Host names.

    `allowed_origins` are whole origins (`https://chat.example`). `max_body_bytes` bounds one request,
    `max_bodies_bytes` all that are held together, of which those of members may take half; `max_requests`
    may be under way at once, waiting for their turn or not; for their turn they wait for `max_wait_seconds`
    at most.
    `keepalive_seconds` of silence in a stream are followed by a comment line. For `continue_seconds` an
    answer waits for a model that was lost under it, and goes on then. `fails_over`: where one upstream is
    lost or refuses, another one may answer at once.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    api_keys: tuple[ApiKey, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 << 20
    max_bodies_bytes: int = 256 << 20
    max_requests: int = 256
    max_wait_seconds: float = 600.0
    keepalive_seconds: float = 10.0
    continue_seconds: float = 0.0
    fails_over: bool = False


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """What one API key has used since the daemon's start."""

    name: str  # as in the key file
    active: int  # requests now, with those that wait for their turn
    answers: int
    prompt_tokens: int  # with those from the cache
    generated_tokens: int
    tokens_today: int  # both together, since midnight UTC


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The OpenAI-compatible API of a serving node."""

    url: str
    ready: bool  # a real token has been generated
    requests: int  # since the daemon's start
    tokens: int  # generated since the daemon's start
    running: int = 0  # answers under way
    waiting: int = 0  # requests that wait for their turn
    keys: tuple[KeyStatus, ...] = ()  # empty where no key is asked for
    reason: str = ""  # why it is not ready; the models that a client offers
    continue_s: float = 0.0  # how long answers wait for a model that is lost under them; 0: they end


FindSampling = Callable[[Mapping[str, object]], DeviceSampling | None]
"""Where tokens are chosen, by llama-server's own settings."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What came of asking for one token: `seconds` it took when `ready`, else `reason` says why not."""

    ready: bool
    reason: str
    seconds: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)  # of llama-server, for requests
