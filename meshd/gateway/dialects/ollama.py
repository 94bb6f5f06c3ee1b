"""Ollama's API (docs/api.md and api/types.go of ollama/ollama): chats, completions, embeddings, models.

Answers are lines of JSON, or whole objects. `meshd serve` decides how a model is loaded, so `num_ctx`,
`num_gpu`, `keep_alive` and similar fields are omitted from requests.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.dialect import Answering, Dialect, RequestFacts, Translation
from meshd.gateway.dialects.fields import is_number, object_of, objects_of, optional, text_of
from meshd.gateway.events import answer_timings
from meshd.gateway.failure import Failure, invalid
from meshd.gateway.interface import AnswerTimings
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

_NANOSECONDS = 1_000_000_000
NDJSON = "application/x-ndjson"
_MOST_ARGUMENTS = 8 << 20  # letters of all calls of an answer; another node may send it
_NO_TIMES = AnswerTimings(0, 0.0, 0, 0.0)


def timestamp(seconds: int) -> str:
    """Return unix seconds as RFC 3339."""
    return datetime.fromtimestamp(max(0, seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ollama_error(failure: Failure) -> dict[str, object]:
    """Return the JSON of an error (StatusError in api/types.go)."""
    return {"error": failure.message}


def _line(fields: Mapping[str, object]) -> bytes:
    # all in ASCII: many clients take U+2028 and U+0085 for ends of lines
    return json.dumps(fields).encode() + b"\n"


def _calls(calls: Iterable[chat.CallPiece]) -> list[dict[str, object]]:
    """Return calls in Ollama's form: arguments as an object, as far as they came."""
    made: list[dict[str, object]] = []
    for call in calls:
        arguments: object = json.loads(chat.sound_arguments(call.arguments))
        function = {"index": call.number, "name": call.name, "arguments": arguments}
        made.append({"id": call.id, "function": function})
    return made


class OllamaAnswering(chat.ChatAnswering):
    """The writer of answers to `/api/chat`. `loads`: for a request that only loads the model."""

    content_type = NDJSON

    def __init__(self, facts: RequestFacts, *, loads: bool = False) -> None:
        super().__init__()
        self._loads = loads
        self._head: dict[str, object] = {"model": facts.model, "created_at": timestamp(facts.created)}
        self._times = _NO_TIMES
        self._calls: dict[int, chat.CallPiece] = {}  # with the pieces of their arguments beside them
        self._arguments: dict[int, list[str]] = {}
        self._room = _MOST_ARGUMENTS

    def _piece(self, text: str, thought: str = "", calls: object = None) -> dict[str, object]:
        """Return the fields that hold a piece of the answer."""
        more = {"thinking": thought, "tool_calls": calls}
        given = {name: value for name, value in more.items() if value}
        return {"message": {"role": "assistant", "content": text, **given}}

    def events(self, events: bytes) -> bytes:
        """Translate whole events of llama-server."""
        self._times = answer_timings(events) or self._times
        return super().events(events)

    def comment(self, text: str) -> bytes:
        """Return an empty piece without the text, because lines of JSON have no comments."""
        return b"" if self._is_over else self._text("")

    def _piece_line(self, piece: dict[str, object]) -> bytes:
        return _line({**self._head, **piece, "done": False})

    def _text(self, text: str) -> bytes:
        return self._piece_line(self._piece(text))

    def _thought(self, text: str) -> bytes:
        return self._piece_line(self._piece("", text))

    def _called(self, piece: chat.CallPiece) -> bytes:
        """Collect the pieces of a call, because Ollama's clients expect it whole."""
        call = self._calls.get(piece.number, piece)
        self._calls[piece.number] = call._replace(id=call.id or piece.id, name=call.name or piece.name)
        self._room -= len(piece.arguments)
        if self._room >= 0:
            self._arguments.setdefault(piece.number, []).append(piece.arguments)
        return b""

    def _failed(self, failure: Failure) -> bytes:
        return _line(ollama_error(failure))

    def _end(self) -> bytes:
        whole = [
            call._replace(arguments="".join(self._arguments.get(number, ())))
            for number, call in self._calls.items()
        ]
        out = self._piece_line(self._piece("", calls=_calls(whole))) if whole else b""
        return out + _line({**self._head, **self._piece(""), **self._figures()})

    def _whole(self, whole: chat.ChatPiece) -> dict[str, object]:
        piece = self._piece(whole.text, whole.thought, _calls(whole.calls))
        return {**self._head, **piece, **self._figures()}

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer; of one that only loads the model, nothing is told but that."""
        if self._loads:
            return {**self._head, **self._piece(""), "done": True, "done_reason": "load"}
        timings = json.dumps({"timings": answer.get("timings")}).encode()
        self._times = answer_timings(timings) or self._times
        return super().whole(answer)

    def _figures(self) -> dict[str, object]:
        """Return the fields at the end of an answer: reason, tokens, and times in nanoseconds."""
        prompt = int(self._times.prompt_seconds * _NANOSECONDS)
        generated = int(self._times.generated_seconds * _NANOSECONDS)
        return {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",  # of calls of tools as well
            "total_duration": prompt + generated,
            "load_duration": 0,
            "prompt_eval_count": self._usage.prompt,
            "prompt_eval_duration": prompt,
            "eval_count": self._usage.generated,
            "eval_duration": generated,
        }


class GenerateAnswering(OllamaAnswering):
    """The writer of answers to `/api/generate`, which offers no tools."""

    def _piece(self, text: str, thought: str = "", calls: object = None) -> dict[str, object]:
        return {"response": text, "thinking": thought} if thought else {"response": text}


class TextAnswering(GenerateAnswering):
    """The writer of answers from completions and infills, which have no messages."""

    def _read(self, fields: Mapping[str, object]) -> chat.ChatPiece:
        """Read OpenAI's form, or llama-server's own (of infills)."""
        choice = next(iter(objects_of(fields.get("choices"))), {})
        text, reason = text_of(choice, "text") + text_of(fields, "content"), text_of(choice, "finish_reason")
        if fields.get("stop") is True:
            reason = "length" if fields.get("stop_type") == "limit" else "stop"
            counts = (fields.get(name) for name in ("tokens_evaluated", "tokens_predicted"))
            prompt, generated = (count if is_number(count) else 0 for count in counts)
            usage = chat.AnswerUsage(prompt, 0, generated)
            return chat.ChatPiece(text, reason=reason, usage=usage, is_last=True)
        return chat.ChatPiece(text, reason=reason, usage=chat.usage_of(fields))


class EmbeddingAnswering(Answering):
    """The writer of embeddings, which are never a stream. `single`: for `/api/embeddings`."""

    def __init__(self, model: str, *, single: bool) -> None:
        self._model = model
        self._single = single

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        found = [item.get("embedding") for item in objects_of(answer.get("data"))]
        if self._single:
            return {"embedding": found[0] if found else []}
        usage = chat.usage_of(answer) or chat.AnswerUsage()
        return {"model": self._model, "embeddings": found, "prompt_eval_count": usage.prompt}


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
    rows = ((_row(model), timestamp(model.facts.created), str(model.state)) for model in models)
    return {"models": [{**row, "modified_at": modified, "state": state} for row, modified, state in rows]}


def running(models: Sequence[ListedModel]) -> dict[str, object]:
    """Answer `GET /api/ps`: the models that are loaded."""
    ready = ((_row(model), model.facts) for model in models if model.state is ModelState.READY)
    more = ({**row, "size_vram": facts.size, "context_length": facts.context} for row, facts in ready)
    return {"models": [{**row, "expires_at": _NEVER} for row in more]}


def shown(name: str, facts: ServedFacts) -> dict[str, object]:
    """Answer `POST /api/show`. The context length is that of one request, if known."""
    context = facts.context or facts.trained_context
    family = facts.architecture or "unknown"
    info: dict[str, object] = {
        "general.architecture": family,
        "general.basename": name,
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
_WHOLE_NUMBERS = frozenset({"seed", "top_k", "repeat_last_n", "mirostat", "num_predict"})


class OllamaDialect(Dialect):
    """The dialect of paths that take no body, and of unknown ones."""

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as JSON."""
        return ollama_error(failure)


class OllamaChat(OllamaDialect):
    """The dialect of `/api/chat`."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        messages = optional(asked, "messages", list, "`messages` must be a list of messages")
        if not messages:
            return _load(asked, OllamaAnswering(facts, loads=True))
        fields: dict[str, object] = {"messages": _messages(messages)}
        if tools := asked.get("tools"):
            fields["tools"] = tools
        return _chat(asked, fields, facts, OllamaAnswering(facts))


class OllamaGenerate(OllamaDialect):
    """The dialect of `/api/generate`: a chat with one message, or plain text with `raw`."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        prompt, suffix = _text(asked, "prompt"), _text(asked, "suffix")
        images = _images(asked.get("images"), "images")
        if suffix:
            return _plain(asked, facts, "/infill", input_prefix=prompt, input_suffix=suffix)
        if not prompt and not images:
            return _load(asked, GenerateAnswering(facts, loads=True))
        if asked.get("raw") is True:
            return _plain(asked, facts, "/v1/completions", prompt=prompt)
        system = _text(asked, "system")
        messages: list[chat.Message] = [{"role": "system", "content": system}] if system else []
        parts = [chat.text_part(prompt)] if prompt else []
        messages.append({"role": "user", "content": chat.content_of([*parts, *images])})
        return _chat(asked, {"messages": messages}, facts, GenerateAnswering(facts))


class OllamaEmbed(OllamaDialect):
    """The dialect of `/api/embed` and its predecessor `/api/embeddings`."""

    def __init__(self, *, single: bool = False) -> None:
        self._single = single

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        name = "prompt" if self._single else "input"
        given = asked.get(name)
        is_list = isinstance(given, list) and all(isinstance(text, str) for text in given)
        if not (isinstance(given, str) or (is_list and not self._single)):
            raise invalid(f"`{name}` must be a string{'' if self._single else ' or a list of strings'}", name)
        size = {"dimensions": asked["dimensions"]} if asked.get("dimensions") is not None else {}
        answering = EmbeddingAnswering(facts.model, single=self._single)
        return Translation("/v1/embeddings", {"input": given, **size}, False, answering)


def _chat(
    asked: Mapping[str, object], fields: dict[str, object], facts: RequestFacts, lines: OllamaAnswering
) -> Translation:
    """Return a request for a chat with these messages and tools, checked as OpenAI's are."""
    stream = _streams(asked)
    fields |= _options(asked) | _format(asked) | _thinking(asked) | chat.stream_fields(stream)
    judged = chat.ChatDialect("/v1/chat/completions").read(fields, facts)
    return Translation(judged.path, judged.fields, stream, lines, judged.notes)


def _plain(asked: Mapping[str, object], facts: RequestFacts, path: str, **prompt: str) -> Translation:
    """Return a request for a text that continues the prompt, without a template."""
    stream = _streams(asked)
    fields: dict[str, object] = {**prompt, **_options(asked)}
    if path == "/infill":  # llama-server's own form, with its names
        fields |= {"stream": True} if stream else {}
        if (length := fields.pop("max_tokens", None)) is not None:
            fields["n_predict"] = length
    else:
        fields |= chat.stream_fields(stream)
    if _format(asked):
        fields["json_schema"] = object_of(asked, "format") or {"type": "object"}
    return Translation(path, fields, stream, TextAnswering(facts))


def _load(asked: Mapping[str, object], lines: OllamaAnswering) -> Translation:
    """Return a request for one token, which the client does not get: it only loads the model."""
    _streams(asked)
    return Translation("/v1/completions", {"prompt": " ", "max_tokens": 1}, False, lines)


def _streams(asked: Mapping[str, object]) -> bool:
    """Return True if a stream is wanted, which is Ollama's default."""
    return optional(asked, "stream", bool, "`stream` must be true or false") is not False


def _text(asked: Mapping[str, object], name: str) -> str:
    return optional(asked, name, str, f"`{name}` must be a string") or ""


def _options(asked: Mapping[str, object]) -> dict[str, object]:
    """Return the options for generation, by llama-server's names; others are omitted."""
    given = optional(asked, "options", dict, "`options` must be an object")
    found: dict[str, object] = {}
    for name, value in (given or {}).items():
        where = f"options.{name}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None:
            continue
        if name in _NUMBERS and not is_number:
            raise invalid(f'option "{name}" must be a number', where)
        if name in _WHOLE_NUMBERS and not (is_number and value == value // 1):
            raise invalid(f'option "{name}" must be a whole number', where)
        if name == "num_predict":
            if value > 0:  # -1: no limit
                found["max_tokens"] = int(value)
        elif name == "repeat_last_n" and value < 0:
            pass  # as far as the context goes: llama-server's default is enough
        elif name in _WHOLE_NUMBERS:
            found[name] = int(value)
        elif name in _NUMBERS:
            found[name] = value
        elif name == "stop":
            found["stop"] = stops = [value] if isinstance(value, str) else value
            if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
                raise invalid('option "stop" must be a list of strings', where)
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
    if given is not None and not isinstance(given, list):
        raise invalid(f"`{where}` must be a list of images in base64", where)
    parts = []
    for at, image in enumerate(given or []):
        if not isinstance(image, str) or not _BASE64.fullmatch(image):
            raise invalid(f"`{where}[{at}]` is not an image in base64", f"{where}[{at}]")
        kind = next((name for begin, name in _IMAGE_TYPES if image.startswith(begin)), "png")
        parts.append(chat.image_part(f"data:image/{kind};base64,{image}"))
    return parts


def _messages(given: list[object]) -> list[chat.Message]:
    """Return OpenAI's form of these messages: calls get ids, to which their results refer."""
    made: list[chat.Message] = []
    open_calls = _OpenCalls()
    for at, message in enumerate(given):
        # check the message
        where = f"messages[{at}]"
        if not isinstance(message, dict):
            raise invalid(f"`{where}` must be an object", where)
        role = message.get("role")
        if role not in _ROLES:
            raise invalid(f"`{where}.role` must be one of {', '.join(_ROLES)}", f"{where}.role")
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            raise invalid(f"`{where}.content` must be a string", f"{where}.content")
        # a result of a tool, or text and images
        if role == "tool":
            made.append(chat.result_message(open_calls.answered(message), content or ""))
            continue
        parts = [chat.text_part(content)] if content else []
        parts += _images(message.get("images"), f"{where}.images")
        translated: chat.Message = {"role": role, "content": chat.content_of(parts)}
        if thought := text_of(message, "thinking"):
            translated["reasoning_content"] = thought
        # calls, with ids for those that have none
        if calls := [open_calls.add(call) for call in objects_of(message.get("tool_calls"))]:
            translated["tool_calls"] = calls
        made.append(translated)
    return made


class _OpenCalls:
    """Calls without a result so far, found in constant time."""

    def __init__(self) -> None:
        self._ids: list[str] = []  # of all
        self._places: dict[str, deque[int]] = {}  # of all, of each id and of each name
        self._answered: set[int] = set()

    def add(self, call: Mapping[str, object]) -> dict[str, object]:
        """Add a call that was made; return it in OpenAI's form."""
        of, number = object_of(call, "function"), len(self._ids)
        id, name = text_of(call, "id") or f"call_{number + 1}", text_of(of, "name")
        for key in ("all", f"id {id}", f"name {name}"):
            self._places.setdefault(key, deque()).append(number)
        self._ids.append(id)
        arguments = of.get("arguments")
        text = arguments if isinstance(arguments, str) else chat.dumped(arguments or {})
        return chat.call_of(id, name, text)

    def answered(self, result: Mapping[str, object]) -> str:
        """Return the id of the call for this result: found by id, by name, or the oldest open call."""
        given, name = text_of(result, "tool_call_id"), text_of(result, "tool_name") or text_of(result, "name")
        for key in (f"id {given}", f"name {name}", "all"):
            places = self._places.get(key, deque())
            while places and places[0] in self._answered:
                places.popleft()
            if places:
                self._answered.add(places[0])
                return self._ids[places[0]]
        return given or name
