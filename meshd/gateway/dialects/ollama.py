"""Ollama's API (docs/api.md and api/types.go of ollama/ollama): chats, completions, embeddings, models.

Answers are lines of JSON, or whole objects. `meshd serve` decides how a model is loaded, so `num_ctx`,
`num_gpu`, `keep_alive` and similar fields are omitted from requests.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.fields import is_number, objects_of, text_of
from meshd.gateway.dialects.interface import Answering, RequestFacts, Translation
from meshd.gateway.dialects.openai import ChatDialect
from meshd.gateway.events import answer_timings
from meshd.gateway.failure import Failure, invalid
from meshd.gateway.interface import AnswerTimings
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

_NANOSECONDS = 1_000_000_000
NDJSON = "application/x-ndjson"
_MOST_ARGUMENTS = 8 << 20  # letters of all calls of an answer; another node may send it


def timestamp(seconds: int) -> str:
    """Return unix seconds as RFC 3339."""
    return datetime.fromtimestamp(max(0, seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _line(fields: Mapping[str, object]) -> bytes:
    # all in ASCII: many clients take U+2028 and U+0085 for ends of lines
    return json.dumps(fields).encode() + b"\n"


def _calls(calls: Sequence[chat.CallPiece]) -> list[dict[str, object]]:
    """Return calls in Ollama's form: arguments as an object, as far as they came."""
    made: list[dict[str, object]] = []
    for call in calls:
        arguments: object = json.loads(chat.sound_arguments(call.arguments))
        function = {"index": call.number, "name": call.name, "arguments": arguments}
        made.append({"id": call.id, "function": function})
    return made


class LineForm(Protocol):
    """The form of a line of the answer, in which `/api/chat` and `/api/generate` differ."""

    @property
    def head(self) -> dict[str, object]:
        """Return the fields of each line."""
        ...

    def piece(
        self, text: str, thought: str = "", calls: list[dict[str, object]] | None = None
    ) -> dict[str, object]:
        """Return the fields that hold a piece of the answer."""
        ...


class ChatLines:
    """Implements LineForm for `/api/chat`."""

    def __init__(self, facts: RequestFacts) -> None:
        self.head: dict[str, object] = {"model": facts.model, "created_at": timestamp(facts.created)}

    def piece(
        self, text: str, thought: str = "", calls: list[dict[str, object]] | None = None
    ) -> dict[str, object]:
        """Return the fields that hold a piece of the answer."""
        message: dict[str, object] = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateLines:
    """Implements LineForm for `/api/generate`, which offers no tools."""

    def __init__(self, facts: RequestFacts) -> None:
        self.head: dict[str, object] = {"model": facts.model, "created_at": timestamp(facts.created)}

    def piece(
        self, text: str, thought: str = "", calls: list[dict[str, object]] | None = None
    ) -> dict[str, object]:
        """Return the fields that hold a piece of the answer."""
        return {"response": text, "thinking": thought} if thought else {"response": text}


@dataclass(slots=True)
class _BegunCall:
    """A tool call whose arguments come in pieces."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def whole(self, number: int) -> chat.CallPiece:
        """Return the call with all its arguments."""
        return chat.CallPiece(number, self.id, self.name, "".join(self.arguments))


class OllamaAnswering:
    """Implements Answering for chats of llama-server."""

    content_type = NDJSON
    passes_on = False

    def __init__(self, lines: LineForm) -> None:
        self._lines = lines
        self._is_over = False
        self._reason = ""
        self._usage = chat.AnswerUsage(0, 0, 0)
        self._timings: AnswerTimings | None = None
        self._calls: dict[int, _BegunCall] = {}
        self._room = _MOST_ARGUMENTS

    def events(self, events: bytes) -> bytes:
        """Translate whole events of llama-server."""
        if self._is_over:
            return b""
        self._timings = answer_timings(events) or self._timings
        out = b""
        for step in self._steps(events):
            match step:
                case chat.TextPiece(text):
                    out += self._said(self._lines.piece(text))
                case chat.ThoughtPiece(text):
                    out += self._said(self._lines.piece("", text))
                case chat.CallPiece():
                    self._called(step)
                case chat.AnswerEnd(reason):
                    self._reason = reason
                case chat.AnswerUsage():
                    self._usage = step
                case chat.AnswerFailed(failure):
                    return out + self.failed(failure)
                case chat.StreamDone():
                    return out + self._end()
        return out

    def _steps(self, events: bytes) -> Iterator[chat.Step]:
        return chat.read_steps(events)

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        self._is_over = True
        return _line({"error": failure.message})

    def comment(self, text: str) -> bytes:
        """Return an empty piece without the text, because lines of JSON have no comments."""
        return b"" if self._is_over else self._said(self._lines.piece(""))

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        whole = self._read(answer)
        self._timings = answer_timings(json.dumps({"timings": answer.get("timings")}).encode())
        self._usage = whole.usage
        piece = self._lines.piece(whole.text, whole.thought, _calls(whole.calls))
        return {**self._lines.head, **piece, **self._figures(whole.reason)}

    def _read(self, answer: Mapping[str, object]) -> chat.ChatAnswer:
        return chat.read_whole(answer)

    def _said(self, piece: dict[str, object]) -> bytes:
        return _line({**self._lines.head, **piece, "done": False})

    def _called(self, step: chat.CallPiece) -> None:
        """Collect the pieces of a call, because Ollama's clients expect it whole."""
        call = self._calls.setdefault(step.number, _BegunCall())
        call.id, call.name = call.id or step.id, call.name or step.name
        self._room -= len(step.arguments)
        if self._room >= 0:
            call.arguments.append(step.arguments)

    def _end(self) -> bytes:
        self._is_over = True
        calls = _calls([call.whole(number) for number, call in self._calls.items()])
        out = self._said(self._lines.piece("", "", calls)) if calls else b""
        return out + _line({**self._lines.head, **self._lines.piece(""), **self._figures(self._reason)})

    def _figures(self, reason: str) -> dict[str, object]:
        """Return the fields at the end of an answer: reason, tokens, and times in nanoseconds."""
        took = self._timings
        prompt = int(took.prompt_seconds * _NANOSECONDS) if took else 0
        generated = int(took.generated_seconds * _NANOSECONDS) if took else 0
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",  # of calls of tools as well
            "total_duration": prompt + generated,
            "load_duration": 0,
            "prompt_eval_count": self._usage.prompt,
            "prompt_eval_duration": prompt,
            "eval_count": self._usage.generated,
            "eval_duration": generated,
        }


class TextAnswering(OllamaAnswering):
    """Implements Answering for completions and infills, which have no messages."""

    def _steps(self, events: bytes) -> Iterator[chat.Step]:
        for fields in chat.event_fields(events):
            yield from _text_steps(fields) if fields is not None else [chat.StreamDone()]

    def _read(self, answer: Mapping[str, object]) -> chat.ChatAnswer:
        steps = list(_text_steps(answer))
        return chat.ChatAnswer(
            text="".join(step.text for step in steps if isinstance(step, chat.TextPiece)),
            thought="",
            calls=(),
            reason=next((step.reason for step in steps if isinstance(step, chat.AnswerEnd)), ""),
            usage=next(
                (step for step in steps if isinstance(step, chat.AnswerUsage)), chat.AnswerUsage(0, 0, 0)
            ),
        )


def _text_steps(fields: Mapping[str, object]) -> Iterator[chat.Step]:
    """Read an event of a completion, or a whole one: OpenAI's form, or llama-server's own (of infills)."""
    for choice in objects_of(fields.get("choices"))[:1]:
        if text := text_of(choice, "text"):
            yield chat.TextPiece(text)
        if reason := text_of(choice, "finish_reason"):
            yield chat.AnswerEnd(reason)
    if isinstance(usage := fields.get("usage"), dict):
        yield chat.usage_of(usage)
    if text := text_of(fields, "content"):
        yield chat.TextPiece(text)
    if fields.get("stop") is True:
        yield chat.AnswerEnd("length" if fields.get("stop_type") == "limit" else "stop")
        prompt, generated = fields.get("tokens_evaluated"), fields.get("tokens_predicted")
        yield chat.AnswerUsage(
            prompt if is_number(prompt) else 0, 0, generated if is_number(generated) else 0
        )
        yield chat.StreamDone()


class LoadedAnswering(TextAnswering):
    """Implements Answering for a request without a prompt, which only loads the model."""

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Return an answer without text, which says that the model is loaded."""
        return {**self._lines.head, **self._lines.piece(""), "done": True, "done_reason": "load"}


class EmbeddingAnswering:
    """Implements Answering for embeddings, which are never a stream. `single`: for `/api/embeddings`."""

    content_type = NDJSON
    passes_on = False

    def __init__(self, model: str, *, single: bool) -> None:
        self._model = model
        self._single = single

    def events(self, events: bytes) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        return _line({"error": failure.message})

    def comment(self, text: str) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        found = [item.get("embedding") for item in objects_of(answer.get("data"))]
        if self._single:
            return {"embedding": found[0] if found else []}
        usage = answer.get("usage")
        prompt = chat.usage_of(usage).prompt if isinstance(usage, dict) else 0
        return {"model": self._model, "embeddings": found, "prompt_eval_count": prompt}


VERSION = "0.12.6"  # of Ollama's API that is offered: clients ask for a least one
_NEVER = "2318-01-01T00:00:00Z"  # when a model is unloaded that is kept, as Ollama has it
_SIZES = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model, with the name that requests use."""

    name: str
    facts: ServedFacts
    state: ModelState = ModelState.READY


def tags(models: Sequence[ListedModel]) -> dict[str, object]:
    """Answer `GET /api/tags`. `state` is not Ollama's."""
    return {
        "models": [
            {**_row(model), "modified_at": timestamp(model.facts.created), "state": str(model.state)}
            for model in models
        ]
    }


def running(models: Sequence[ListedModel]) -> dict[str, object]:
    """Answer `GET /api/ps`: the models that are loaded."""
    more = [
        {"size_vram": model.facts.size, "expires_at": _NEVER, "context_length": model.facts.context}
        for model in models
    ]
    rows = zip(models, more, strict=True)
    return {"models": [{**_row(model), **row} for model, row in rows if model.state is ModelState.READY]}


def shown(model: ListedModel) -> dict[str, object]:
    """Answer `POST /api/show`. The context length is that of one request, if known."""
    facts = model.facts
    context = facts.context or facts.trained_context
    family = facts.architecture or "unknown"
    info: dict[str, object] = {
        "general.architecture": family,
        "general.basename": model.name,
        "general.parameter_count": facts.parameters,
        f"{family}.context_length": context,
        f"{family}.embedding_length": facts.embedding_length,
    }
    return {
        "modelfile": "",
        "parameters": f"num_ctx {context}" if context else "",
        "template": "",
        "details": _details(facts),
        "model_info": {name: value for name, value in info.items() if value},
        "capabilities": list(facts.capabilities),
        "modified_at": timestamp(facts.created),
    }


def _row(model: ListedModel) -> dict[str, object]:
    facts = model.facts
    return {
        "name": model.name,
        "model": model.name,
        "size": facts.size,
        "digest": facts.fingerprint,
        "details": _details(facts),
    }


def _details(facts: ServedFacts) -> dict[str, object]:
    family = facts.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(facts.parameters),
        "quantization_level": facts.quantization,
    }


def _size(parameters: int) -> str:
    """Format a number of parameters as Ollama does: `8.0B`, `134.5M`."""
    for unit, letter in _SIZES:
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters) if parameters else ""


_CHAT = "/v1/chat/completions"
_ROLES = ("system", "user", "assistant", "tool")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]++={0,2}\s*+")  # possessive, so that the time is linear
_EFFORTS = ("low", "medium", "high", "max")
_IMAGE_TYPES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lGOD", "gif"), ("UklGR", "webp"), ("Qk", "bmp"))
_NUMBERS = frozenset(
    {
        *("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty"),
        *("frequency_penalty", "mirostat_tau", "mirostat_eta"),
    }
)
_WHOLE_NUMBERS = frozenset({"seed", "top_k", "repeat_last_n", "mirostat"})


def ollama_error(failure: Failure) -> dict[str, object]:
    """Return the JSON of an error (StatusError in api/types.go)."""
    return {"error": failure.message}


class OllamaDialect:
    """Implements Dialect except for `read`; it also words the errors of unknown paths."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        raise invalid("this path takes no body")

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as JSON."""
        return ollama_error(failure)


class OllamaChat(OllamaDialect):
    """Implements Dialect for `/api/chat`."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        messages = asked.get("messages")
        if messages is not None and not isinstance(messages, list):
            raise invalid("`messages` must be a list of messages", "messages")
        lines = ChatLines(facts)
        if not messages:
            return _load(asked, lines)
        fields: dict[str, object] = {"messages": _messages(messages)}
        if tools := asked.get("tools"):
            fields["tools"] = tools
        return _chat(asked, fields, facts, lines)


class OllamaGenerate(OllamaDialect):
    """Implements Dialect for `/api/generate`: a chat with one message, or plain text with `raw`."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        prompt, suffix = _text(asked, "prompt"), _text(asked, "suffix")
        lines = GenerateLines(facts)
        images = _images(asked.get("images"), "images")
        if suffix:
            return _plain(asked, lines, "/infill", input_prefix=prompt, input_suffix=suffix)
        if not prompt and not images:
            return _load(asked, lines)
        if asked.get("raw") is True:
            return _plain(asked, lines, "/v1/completions", prompt=prompt)
        messages: list[chat.Message] = []
        if system := _text(asked, "system"):
            messages.append({"role": "system", "content": system})
        parts = [chat.text_part(prompt)] if prompt else []
        messages.append({"role": "user", "content": chat.content_of([*parts, *images])})
        return _chat(asked, {"messages": messages}, facts, lines)


class OllamaEmbed(OllamaDialect):
    """Implements Dialect for `/api/embed` and its predecessor `/api/embeddings`."""

    def __init__(self, *, single: bool = False) -> None:
        self._single = single

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        name = "prompt" if self._single else "input"
        given = asked.get(name)
        is_list = isinstance(given, list) and all(isinstance(text, str) for text in given)
        if not (isinstance(given, str) or (is_list and not self._single)):
            raise invalid(f"`{name}` must be a string{'' if self._single else ' or a list of strings'}", name)
        fields: dict[str, object] = {"input": given}
        if asked.get("dimensions") is not None:
            fields["dimensions"] = asked["dimensions"]
        answering = EmbeddingAnswering(facts.model, single=self._single)
        return Translation("/v1/embeddings", fields, False, answering)


def _chat(
    asked: Mapping[str, object], fields: dict[str, object], facts: RequestFacts, lines: LineForm
) -> Translation:
    """Return a request for a chat with these messages and tools, checked as OpenAI's are."""
    stream = _streams(asked)
    fields |= _options(asked) | _format(asked) | _thinking(asked) | chat.stream_fields(stream)
    judged = ChatDialect(_CHAT).read(fields, facts)
    return Translation(judged.path, judged.fields, stream, OllamaAnswering(lines), judged.notes)


def _plain(asked: Mapping[str, object], lines: LineForm, path: str, **prompt: str) -> Translation:
    """Return a request for a text that continues the prompt, without a template."""
    stream = _streams(asked)
    fields: dict[str, object] = {**prompt, **_options(asked)}
    if path == "/infill":  # llama-server's own form, with its names
        fields |= {"stream": True} if stream else {}
        if (length := fields.pop("max_tokens", None)) is not None:
            fields["n_predict"] = length
    else:
        fields |= chat.stream_fields(stream)
    if wanted := asked.get("format"):
        _format(asked)  # judges it
        fields["json_schema"] = wanted if isinstance(wanted, dict) else {"type": "object"}
    return Translation(path, fields, stream, TextAnswering(lines))


def _load(asked: Mapping[str, object], lines: LineForm) -> Translation:
    """Return a request for one token, which the client does not get: it only loads the model."""
    _streams(asked)
    answering: Answering = LoadedAnswering(lines)
    return Translation("/v1/completions", {"prompt": " ", "max_tokens": 1}, False, answering)


def _streams(asked: Mapping[str, object]) -> bool:
    """Return True if a stream is wanted, which is Ollama's default."""
    stream = asked.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid("`stream` must be true or false", "stream")
    return stream is not False


def _text(asked: Mapping[str, object], name: str) -> str:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"`{name}` must be a string", name)
    return value or ""


def _options(asked: Mapping[str, object]) -> dict[str, object]:
    """Return the options for generation, by llama-server's names; others are omitted."""
    given = asked.get("options")
    if given is not None and not isinstance(given, dict):
        raise invalid("`options` must be an object", "options")
    found: dict[str, object] = {}
    for name, value in (given or {}).items():
        where = f"options.{name}"
        if value is None:
            continue
        if name in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise invalid(f'option "{name}" must be a number', where)
            found[name] = value
        elif name in _WHOLE_NUMBERS or name == "num_predict":
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            if isinstance(whole, bool) or not isinstance(whole, int):
                raise invalid(f'option "{name}" must be a whole number', where)
            if name == "repeat_last_n" and whole < 0:
                continue  # as far as the context goes: llama-server's default is enough
            if name != "num_predict":
                found[name] = whole
            elif whole > 0:  # -1: no limit
                found["max_tokens"] = whole
        elif name == "stop":
            stops = [value] if isinstance(value, str) else value
            if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
                raise invalid('option "stop" must be a list of strings', where)
            found["stop"] = stops
    return found


def _format(asked: Mapping[str, object]) -> dict[str, object]:
    wanted = asked.get("format")
    if wanted in (None, ""):
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, dict):
        return {"response_format": chat.schema_format(wanted)}
    raise invalid('`format` must be "json" or a JSON schema', "format")


def _thinking(asked: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that set how much the model reasons: `think` is a boolean or a level."""
    think = asked.get("think")
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    if think in _EFFORTS:
        effort = chat.effort_of({"effort": think})
        return {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": effort}}
    raise invalid('`think` must be true, false, "low", "medium" or "high"', "think")


def _images(given: object, where: str) -> list[chat.Part]:
    """Read images in base64, of any type, since llama-server detects it from the bytes."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise invalid(f"`{where}` must be a list of images in base64", where)
    parts = []
    for at, image in enumerate(given):
        if not isinstance(image, str) or not _BASE64.fullmatch(image):
            raise invalid(f"`{where}[{at}]` is not an image in base64", f"{where}[{at}]")
        kind = next((name for begin, name in _IMAGE_TYPES if image.startswith(begin)), "png")
        parts.append(chat.image_part(f"data:image/{kind};base64,{image}"))
    return parts


def _messages(given: list[object]) -> list[chat.Message]:
    """Return OpenAI's form of these messages: calls get ids, to which their results refer."""
    made: list[chat.Message] = []
    open_calls = _OpenCalls()
    count = 0
    for at, message in enumerate(given):
        # check the message
        where = f"messages[{at}]"
        if not isinstance(message, dict):
            raise invalid(f"`{where}` must be an object", where)
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            allowed = ", ".join(_ROLES)
            raise invalid(f"`{where}.role` must be one of {allowed}", f"{where}.role")
        if content is not None and not isinstance(content, str):
            raise invalid(f"`{where}.content` must be a string", f"{where}.content")
        # a result of a tool, or text and images
        if role == "tool":
            made.append(chat.result_message(open_calls.answered(message), content or ""))
            continue
        parts = [chat.text_part(content)] if content else []
        translated: chat.Message = {
            "role": role,
            "content": chat.content_of([*parts, *_images(message.get("images"), f"{where}.images")]),
        }
        if thought := text_of(message, "thinking"):
            translated["reasoning_content"] = thought
        # calls, with ids for those that have none
        calls = []
        for call in objects_of(message.get("tool_calls")):
            function = call.get("function")
            of = function if isinstance(function, dict) else {}
            count += 1
            id = text_of(call, "id") or f"call_{count}"
            arguments = of.get("arguments")
            text = arguments if isinstance(arguments, str) else chat.dumped(arguments or {})
            calls.append(chat.call_of(id, text_of(of, "name"), text))
            open_calls.add(id, text_of(of, "name"))
        if calls:
            translated["tool_calls"] = calls
        made.append(translated)
    return made


class _OpenCalls:
    """Calls without a result so far, found in constant time."""

    def __init__(self) -> None:
        self._all: list[tuple[str, str]] = []  # id and name
        self._places: dict[str, deque[int]] = {}  # of all, of each id and of each name
        self._answered: set[int] = set()

    def add(self, id: str, name: str) -> None:
        """Add a call that was made."""
        for key in ("all", f"id {id}", f"name {name}"):
            self._places.setdefault(key, deque()).append(len(self._all))
        self._all.append((id, name))

    def answered(self, result: Mapping[str, object]) -> str:
        """Return the id of the call for this result: found by id, by name, or the oldest open call."""
        given, name = text_of(result, "tool_call_id"), text_of(result, "tool_name") or text_of(result, "name")
        for key in (f"id {given}", f"name {name}", "all"):
            places = self._places.get(key, deque())
            while places and places[0] in self._answered:
                places.popleft()
            if places:
                self._answered.add(places[0])
                return self._all[places[0]][0]
        return given or name
