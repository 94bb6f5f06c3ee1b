"""The ways in at which a node answers members: models, pieces, serving, api, capacity, path-probe.

Each is asked well, and in the ways that are not meant. WAYS says which; the one used least comes next.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.devices.path_probe import PATH_PROBE_SERVICE, PROBED_BYTES
from meshd.wire import capacity, models
from meshd.wire.message import LengthParser, framed
from meshd.wire.models import CONTENT_FIELD, HERE, PIECES_SERVICE, piece_request

from tests.fuzz.mutate import either
from tests.hostile.approach import FLOOD, VIRTUAL, VOLLEY, Approach, Metadata, Pace, Said
from tests.hostile.member import Mallory, Talk, Target

ANSWER_SECONDS = 5.0
SILENT_STREAMS = 4  # kept open at a time
KIND = "1=mul_mat:q8_0:64:1000"  # of a layer that can be timed
WAYS = {
    "good": "a question, and its answer is read",
    "damaged": "a question, and then damaged ones",
    "endless": "a question, and then more than anybody asks",
    "disordered": "what comes later or from the other side, and then a question",
    "oversized": "more in one piece than the service takes",
    "silent": "half a question, and then nothing",
    "reset": "a question, and a reset in the same breath",
    "many": "a question on many streams at once",
}
HTTP = tuple(
    b"\r\n".join((line, b"Host: localhost", *headers, b"", body))
    for line, headers, body in (
        (b"GET /v1/models HTTP/1.1", (), b""),
        (b"GET /health HTTP/1.1", (), b""),
        (
            b"POST /v1/chat/completions HTTP/1.1",
            (b"Content-Type: application/json", b"Content-Length: 59"),
            b'{"model": "tiny", "messages": [{"role": "user", "content":""',
        ),
        (
            b"POST /v1/completions HTTP/1.1",
            (b"Content-Type: application/json", b"Transfer-Encoding: chunked"),
            b'f\r\n{"prompt": "hi"\r\n1\r\n}\r\n0\r\n\r\n',
        ),
    )
)


@dataclass(frozen=True, slots=True)
class _Service:
    """The words for one service. `is_answer`: an honest node's answer to a good question, as far as it has
    come, and whether it ended there. `misplaced`: what belongs to a later moment, or to the other side."""

    name: str
    question: Said
    is_answer: Callable[[bytes, bool], bool]
    damaged: Callable[[], Said]
    misplaced: Callable[[], Said]
    oversized: Callable[[], bytes]
    metadata: Metadata


class Asking(Approach):
    """The hostile member where it is answered."""

    def __init__(
        self, mallory: Mallory, targets: Sequence[Target], owner: Owner, *, pace: Pace = VIRTUAL
    ) -> None:
        super().__init__(mallory, targets, owner, pace=pace)
        self._silent: deque[tuple[Talk, int]] = deque()
        self._models: dict[str, models.ToldModel] = {}  # the first of each victim, as it told last

    async def _ask_models(self) -> None:
        victim = self._target()
        row = self._models.get(victim.name)
        questions: list[models.AskModels | models.AskPieces | models.AskTensors] = [models.AskModels()]
        if row is not None:
            questions += [models.AskPieces(row.key), models.AskTensors(row.key)]
        await self._ask(victim, self._about_models(self._rng.choice(questions)))

    async def _ask_pieces(self) -> None:
        victim = self._target()
        row = self._models.get(victim.name)
        if row is None or not row.content:  # it is told once the node has read its model for somebody
            talk = await self._talk(victim)
            if row is not None:
                await self._hear(talk, self._about_models(models.AskPieces(row.key)))
            heard = await self._hear(talk, self._about_models(models.AskModels()))
            told = next(
                (one for one in _messages(heard, models.decode) if isinstance(one, models.ModelsTold)), None
            )
            if told is not None and told.models:
                row = self._models[victim.name] = told.models[0]
        content = row.content if row is not None else b""
        question = "pieces.0", piece_request(0)
        samples = [piece_request(number) for number in (0, 1, 0xFFFFFFFF)]
        await self._ask(
            victim,
            _Service(
                name=PIECES_SERVICE,
                question=question,
                is_answer=lambda data, _ended: data[:1] == HERE,
                damaged=lambda: ("pieces.damaged", either(self._rng, self._rng.choice(samples), samples)),
                misplaced=lambda: ("pieces.misplaced", HERE + self._rng.randbytes(100)),
                oversized=lambda: samples[0] * (1 << 15),
                metadata={CONTENT_FIELD: content if self._rng.random() < 0.9 else self._rng.randbytes(32)},
            ),
        )

    async def _watch_serving(self) -> None:
        """Nothing is asked there: good is to be silent."""
        await self._ask(
            self._target(),
            self._in_messages(
                models.SERVING_SERVICE,
                ("serving.nothing", b""),
                lambda data, _ended: bool(_messages(data, models.decode_serving)),
                module="models",
            ),
        )

    async def _ask_capacity(self) -> None:
        asked = capacity.AskCapacity(timed=(KIND,), measure=self._rng.random() < 0.5)
        await self._ask(
            self._target(),
            self._in_messages(
                capacity.CAPACITY_SERVICE,
                ("capacity.AskCapacity", framed(asked.encode())),
                lambda data, _ended: any(
                    isinstance(one, capacity.Capacity) for one in _messages(data, capacity.decode)
                ),
            ),
        )

    async def _call_api(self) -> None:
        metadata: Metadata = {}
        if self._rng.random() < 0.2:
            metadata[models.KEY_PROOF] = self._rng.randbytes(self._rng.choice((1, 32, 64, 500)))
        await self._ask(
            self._target(),
            _Service(
                name=models.API_SERVICE,
                question=("api.request", self._rng.choice(HTTP)),
                is_answer=lambda data, _ended: data.startswith(b"HTTP/1.1 "),
                damaged=lambda: ("api.damaged", either(self._rng, self._rng.choice(HTTP), HTTP)),
                misplaced=lambda: ("api.misplaced", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
                oversized=lambda: b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20),
                metadata=metadata,
            ),
        )

    async def _fill_path(self) -> None:
        await self._ask(
            self._target(),
            _Service(
                name=PATH_PROBE_SERVICE,
                question=("path-probe.bytes", bytes(64 << 10)),
                is_answer=lambda _data, ended: ended,
                damaged=lambda: ("path-probe.damaged", self._rng.randbytes(100)),
                misplaced=lambda: ("path-probe.misplaced", self._framed(b"answer")),
                oversized=lambda: bytes(PROBED_BYTES + 1),
                metadata={},
            ),
        )

    def _about_models(self, asked: models.AskModels | models.AskPieces | models.AskTensors) -> _Service:
        return self._in_messages(
            models.MODELS_SERVICE,
            (f"models.{type(asked).__name__}", framed(asked.encode())),
            lambda data, _ended: bool(
                [one for one in _messages(data, models.decode) if not isinstance(one, models.ReadingModel)]
            ),
        )

    def _in_messages(
        self, name: str, question: Said, is_answer: Callable[[bytes, bool], bool], *, module: str = ""
    ) -> _Service:
        """A service whose messages are those of a module of `meshd.wire`: the one that has its name."""

        def damaged() -> Said:
            before, self.speech.broken = self.speech.broken, 1.0
            try:
                return self._word(self.speech.of(module or name))
            finally:
                self.speech.broken = before

        return _Service(
            name=name,
            question=question,
            is_answer=is_answer,
            damaged=damaged,
            misplaced=lambda: self._word(self.speech.of(module or name)),
            oversized=lambda: self._rng.choice((0xFFFFFFFF, 1 << 20)).to_bytes(4, "big") + bytes(1 << 18),
            metadata={} if self._rng.random() < 0.8 else {"ask": 1, "x": self._rng.randbytes(200)},
        )

    async def _ask(self, victim: Target, it: _Service) -> None:
        way = min(WAYS, key=lambda way: (self.sent[f"{it.name}.{way}"], self._rng.random()))
        talk = await self._talk(victim)
        while len(self._silent) > SILENT_STREAMS or (self._silent and self._rng.random() < 0.3):
            _reset(*self._silent.popleft())
        mark = f"{it.name}.{way}", b""
        if way == "good":
            await self._hear(talk, it, mark)
            return
        count = self._rng.choice((VOLLEY, VOLLEY, FLOOD)) if way == "many" else 1
        opened = [one for one in (talk.open(it.name, it.metadata) for _ in range(count)) if one is not None]
        for number in opened:
            await self._say(talk, number, [mark, *self._said(way, it)], eof=self._rng.random() < 0.3)
            if way == "silent":
                self._silent.append((talk, number))
            elif way in ("reset", "many") or self._rng.random() < 0.7:
                _reset(talk, number)

    def _said(self, way: str, it: _Service) -> list[Said]:
        name, data = it.question
        match way:
            case "damaged":
                return [it.question, *(it.damaged() for _ in range(VOLLEY // 4))]
            case "endless":
                return [it.question] * VOLLEY
            case "disordered":
                return [it.misplaced(), it.question]
            case "oversized":
                return [("oversized", it.oversized())]
            case "silent":
                return [(name, data[: len(data) // 2])]
        return [it.question]

    async def _hear(self, talk: Talk, it: _Service, *marks: Said) -> bytes:
        """Ask well, and return what the node says; that it is an answer is noted."""
        number = talk.open(it.name, it.metadata)
        if number is None:
            return b""
        talk.kept[number] = False
        await self._say(talk, number, [*marks, it.question], eof=it.name == PATH_PROBE_SERVICE)

        def answered() -> bool:
            return it.is_answer(bytes(talk.heard.get(number, b"")), talk.kept[number])

        if await talk.until(lambda: answered() or number not in talk.live, ANSWER_SECONDS) and answered():
            self._heard[answered_sign(it.name)] += 1
        heard = bytes(talk.heard.pop(number, b""))
        del talk.kept[number]
        _reset(talk, number)
        return heard


def answered_sign(service: str) -> str:
    """Return what is counted when a victim has answered a good question there."""
    return f"{service}: answered"


def _reset(talk: Talk, number: int) -> None:
    if number in talk.live and not talk.over:
        talk.session.reset(number, 1, "enough")


def _messages(data: bytes, decode: Callable[[bytes], object]) -> list[object]:
    """All whole messages; those that cannot be read are left out."""
    parser, found = LengthParser(), list[object]()
    try:
        parser.feed(data)
        found += [decode(message) for message in parser.messages()]
    except MeshdError:
        pass
    return found
