"""The API of a serving node: an OpenAI-compatible proxy in front of llama-server, and a chat page.

The gateway reports true readiness, forwards streams unbuffered, checks keys and browser
headers, and turns a lost upstream into an error event. It knows an Upstream, never the mesh.
It must never hold an answer that the client does not read, nor continue a generation whose client is gone.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from socket import socket
from typing import Protocol

from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, ModelStatus, WorkerWeights


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None: no limit. The fields are the names in the key file."""

    concurrent: int | None = None  # requests at a time, with those that wait for their turn
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None  # of prompts and answers, from midnight to midnight UTC


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key. `name` is shown in status and in the log of answers; the secret never is."""

    secret: str = field(repr=False)
    name: str = "key-1"
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True, slots=True)
class Readiness:
    """State of the model now; `reason` in words; `retry_after` in seconds; progress in [0, 1] or None.

    `workers`: the progress of each worker while the model loads. `no_room`: the model failed, or waits, for
    lack of memory, which other workers may bring. `too_few`: it waits for workers, as fewer are there than
    demanded. `note`: a comment for clients whose answers continue.
    """

    state: ModelState
    reason: str
    retry_after: int = 5
    progress: float | None = None
    workers: tuple[WorkerWeights, ...] = ()
    no_room: bool = False
    too_few: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class AnswerTimings:
    """The times of an answer, as llama-server gives them. `prompt_tokens` excludes cached tokens.

    `drafted`: draft tokens; `accepted`: those of them that are in the answer.
    """

    prompt_tokens: int
    prompt_seconds: float
    generated_tokens: int
    generated_seconds: float
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class ModelWish:
    """A request's wish for a model: its name, and the digests of the keys that the request carries."""

    model: str = ""
    keys: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class MemberCaller:
    """A member that calls the API over a stream of the mesh.

    Its requests take turns and shares as those of `key` do. None: a key is required, and it has shown none.
    """

    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ComputedTime:
    """Time that a worker computed within a span: seconds, in so many turns that each led to a result."""

    seconds: float
    turns: int


class Upstream(Protocol):
    """The server that answers requests: a llama-server, or for one request another node's API.

    The defaults are for an upstream whose requests are counted and queued elsewhere.
    """

    @property
    def readiness(self) -> Readiness: ...

    @property
    def model_name(self) -> str:
        """Return the model's name; empty if a request leaves the choice to another node."""

    @property
    def facts(self) -> ServedFacts:
        """Return the facts about the model that clients see; all unknown for another node's model."""
        return ServedFacts()

    @property
    def slots(self) -> int | None:
        """Return how many answers it generates at a time; the last known number while no model is loaded.

        None: requests do not queue here, because the node that answers them has a queue.
        """
        return None

    @property
    def may_name_slots(self) -> bool:
        """Return True if requests may name their slot: each has its own cache, saved nowhere else."""
        return False

    async def connect(self) -> socket:
        """Open a connection for HTTP, which the caller owns. Raises OSError, MeshdError."""

    def is_refusal(self, status: int) -> bool:
        """Return True if an answer with this status means that another upstream may take the request."""
        return False

    async def upstream_broke(self, why: str) -> str:
        """Note that a request found the upstream gone or useless. Returns why, as far as it is known.

        New requests are refused from the call on; the reason may take a second.
        """
        return why

    @property
    def crashes(self) -> int:
        """Count the llama-servers that crashed: by a signal of their own, or for lack of progress.

        The last one counts once `upstream_broke` has returned.
        """
        return 0

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """Return the rule for requests that sample on a worker; None if there is none."""
        return None

    @property
    def holds_turns(self) -> str:
        """Return why no more answers may begin until the running ones have ended; empty if they may."""
        return ""

    def queued(self, waiting: int) -> None:
        """Note how many requests wait for their turn; called when that has changed."""
        return

    def requested(self, active: int) -> None:
        """Note how many requests are under way; called when that has changed."""
        return

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Note the progress of a stream: `total` tokens by now, `grown` of them new.

        `alone`: no other answer is running.
        """
        return

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Note the end of an answer, `seconds` after its request came. `alone`: no other ran meanwhile."""
        return

    async def computed(self, spans: Sequence[tuple[float, float]]) -> Mapping[str, Sequence[ComputedTime]]:
        """Ask each worker what it computed in these spans of loop time; those that do not know are left out.

        It computes for all requests at once.
        """
        return {}


class ModelTurn(Protocol):
    """One request's use of a model: `begin` waits for the model, which then stays until `end`."""

    @property
    def notice(self) -> str:
        """Return what the request waits for, in words; empty if it does not wait."""

    async def begin(self) -> Readiness | None:
        """Wait until the model may be asked. Returns its state if it cannot be used, else None."""

    def end(self) -> None:
        """End the use, whether or not the request was made. Idempotent."""


class NamedModel(Protocol):
    """One of the models behind a gateway."""

    @property
    def upstream(self) -> Upstream: ...

    def turn(self) -> ModelTurn:
        """Return a turn for a new request."""

    def unload_unused(self) -> str:
        """Begin to unload it, unless requests need it or it is never unloaded. Returns why not, or ""."""


class Models(Protocol):
    """The models behind a gateway: one that answers to any name, several by name, or other nodes' models."""

    @property
    def all(self) -> Sequence[NamedModel]:
        """Return the models that can be requested now; those of other nodes change."""

    @property
    def only(self) -> NamedModel | None:
        """Return the model of a gateway with a single one, which is loaded without a request; else None."""

    @property
    def on_demand(self) -> bool:
        """Return True if requests load models, so that all can be named at any time.

        Requests then do not wait for a model that cannot be loaded.
        """

    @property
    def readiness(self) -> Readiness:
        """Return the readiness of all together: READY while any model can be used."""

    def find(self, wish: ModelWish) -> NamedModel | None:
        """Find the model for one request, by name or alias; the default for an empty name."""

    @property
    def statuses(self) -> Sequence[ModelStatus]:
        """Return the statuses of models on demand, in the order of `all`."""


class MemberGate(Protocol):
    """The API as members of the mesh call it."""

    def requests_of(self, model: str) -> int:
        """Count the requests for a model that are under way, or wait for their turn."""

    @property
    def key_digests(self) -> Sequence[bytes]:
        """Return the digests of the accepted API keys; empty if no key is required."""

    async def take(self, connection: socket, member: MemberCaller) -> None:
        """Answer on a connection that a member has opened; the gate owns it from now on. Raises Broken."""


class ConsoleSource(Protocol):
    """The content and the actions of the page of the mesh; values are ready for JSON."""

    def watch(self) -> AsyncIterator[Mapping[str, object]]:
        """Yield the whole state at once, and again when it has changed, at most twice a second.

        The gateway watches once for all browsers.
        """

    async def act(self, name: str, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Do what the control socket does for the request `name`. Raises MeshdError."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway's settings. `port` 0 picks a free port; beyond loopback, keys are required.

    `allowed_hosts` are extra Host names, `allowed_origins` whole origins (`https://chat.example`).
    `max_body_bytes` limits one request's body, `max_bodies_bytes` all bodies together, of which members'
    may take half. `max_requests` limits the requests under way, waiting or running. After
    `keepalive_seconds` of silence a stream gets a comment line. If the model is lost, an answer waits up to
    `continue_seconds` for it and then continues. `fails_over`: if one upstream is lost or refuses, another
    may answer at once.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    api_keys: tuple[ApiKey, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 << 20
    max_bodies_bytes: int = 256 << 20
    max_requests: int = 256
    keepalive_seconds: float = 10.0
    continue_seconds: float = 0.0
    fails_over: bool = False


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The use of one API key since the daemon's start."""

    name: str  # as in the key file
    active: int  # requests now, waiting ones included
    answers: int  # requests answered
    prompt_tokens: int  # cached ones included
    generated_tokens: int
    tokens_today: int  # of both, since midnight UTC


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The OpenAI-compatible API of a serving node."""

    url: str
    ready: bool  # a real token has been generated
    requests: int  # since the start
    tokens: int  # generated since the start
    running: int = 0  # requests
    waiting: int = 0  # requests without a slot
    keys: tuple[KeyStatus, ...] = ()  # empty if no key is required
    reason: str = ""  # why it is not ready; on a client: the models it offers
    continue_s: float = 0.0  # how long interrupted requests wait for the model; 0: they end


class RequestPhase(StrEnum):
    """The step of a request under way: it waits for its turn or its model, or is computed."""

    WAITING = "waiting"
    PROMPT = "prompt"
    ANSWERING = "answering"


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """A request under way. `seconds` since it came; `tok_s`: tokens a second, None until there are two, and
    while it waits.

    `key`: the name of the API key, empty without one. `note`: what it waits for, in words.
    """

    id: int
    model: str
    phase: RequestPhase
    seconds: float
    tokens: int  # generated so far
    tok_s: float | None
    key: str
    note: str = ""


FindSampling = Callable[[Mapping[str, object]], DeviceSampling | None]
"""Where tokens are chosen, by llama-server's own settings."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The outcome of asking for one token: `seconds` it took when `ready`, else `reason` says why not."""

    ready: bool
    reason: str
    seconds: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)  # of llama-server, for requests
    props: Mapping[str, object] = field(default_factory=dict)  # all that llama-server says by `/props`
