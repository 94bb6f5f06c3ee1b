"""OpenAI's chats, which are llama-server's form: other dialects translate requests to them and answers back.

https://platform.openai.com/docs/api-reference/chat/create

The pieces of a request come first, then those of an answer: an event of a stream and a whole answer are read
alike, as text, reasoning, calls and figures. At the end is the dialect itself: requests
that OpenAI's servers refuse are refused, and llama-server's answers stay unchanged.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from meshd.base.peer_limits import API_BODY_PARTS, API_BODY_VALUES
from meshd.gateway.continuation import begun_arguments
from meshd.gateway.dialects.dialect import Answering, Dialect, RequestFacts, Translation, sse
from meshd.gateway.dialects.fields import (
    check_number,
    is_number,
    object_of,
    objects_of,
    optional,
    text_of,
    wants_stream,
)
from meshd.gateway.events import event_data, parsed, whole_events
from meshd.gateway.failure import Failure, HttpRefusal, invalid, object_failure

_MOST_NAMES = 8  # of tools, in an error
Part = dict[str, object]
Message = dict[str, object]


def text_part(text: str) -> Part:
    """Return text as a part of a message."""
    return {"type": "text", "text": text}


def image_part(url: str) -> Part:
    """Return an image, by its data URL, as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(parts: Sequence[Part]) -> str | list[Part]:
    """Return the content of a message: a plain string for a single text, since all templates take that."""
    return result_of(parts) if len(parts) < 2 else list(parts)


def result_of(parts: Sequence[Part]) -> str | list[Part]:
    """Return the content of a tool's result: one text, unless there are images."""
    if all(part["type"] == "text" for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return list(parts)


def call_of(id: str, name: str, arguments: str) -> dict[str, object]:
    """Return a tool call in the form of the assistant's message, before `sound_calls`."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result_message(id: str, content: str | list[Part]) -> Message:
    """Return the message with the result of the call with this `id`."""
    return {"role": "tool", "tool_call_id": id, "content": content}


class Growing(list[object]):
    """Contents or texts to be joined at the end, because joining each would copy all before it."""


def add_to_assistant(messages: list[Message], fields: Mapping[str, object]) -> None:
    """Add to the assistant's message at the end of `messages`, or begin one; `grown` joins the pieces."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    for name, value in fields.items():
        grow(messages[-1], name, *(value if isinstance(value, list) and name == "tool_calls" else [value]))


def grow(message: Message, name: str, *more: object) -> None:
    """Add to a list, content or text of a message, which must not be used before `grown`."""
    held = message.get(name)
    if not isinstance(held, Growing):
        calls = held if name == "tool_calls" and isinstance(held, list) else [held]
        held = message[name] = Growing(filter(None, calls))
    held += filter(None, more)


def grown(messages: list[Message]) -> list[Message]:
    """Join all that has grown in these messages, in place, and return them."""
    for message in messages:
        for name, held in message.items():
            if isinstance(held, Growing):
                message[name] = _grown(name, held)
    return messages


def _grown(name: str, held: Growing) -> object:
    match name:
        case "content":
            return joined(*held)
        case "tool_calls":
            return list(held)
        case _:
            return "".join(map(str, held))


def joined(*contents: object) -> str | list[Part]:
    """Return the contents of messages as one."""
    texts = list(takewhile(lambda content: isinstance(content, str | None), contents))
    text, rest = "\n\n".join(str(text) for text in texts if text), contents[len(texts) :]
    return [part for content in (text, *rest) for part in _parts(content)] if rest else text


def _parts(content: object) -> list[Part]:
    return [text_part(content)] if isinstance(content, str) and content else objects_of(content)


def dumped(value: object) -> str:
    """Return JSON as models are trained to read it, without escaping letters."""
    return json.dumps(value, ensure_ascii=False)


def sound_calls(messages: list[Message]) -> list[Message]:
    """Make the arguments of all calls JSON objects, in place. Raises HttpRefusal for too many values.

    They are JSON within a string, so they were not counted with the body; quotation marks and brackets in
    their texts count as well.
    """
    calls = [call for message in messages for call in objects_of(message.get("tool_calls"))]
    functions = [function for call in calls if isinstance(function := call.get("function"), dict)]
    texts = [text_of(function, "arguments") for function in functions]
    parts = sum(text.count('"') // 2 + text.count("[") + text.count("{") for text in texts)
    if parts > API_BODY_PARTS.most or parts + sum(text.count(",") for text in texts) > API_BODY_VALUES.most:
        message = (
            f"the arguments of all tool calls have more than {API_BODY_PARTS.most} strings, lists and "
            f"objects, or {API_BODY_VALUES.most} values: send fewer calls"
        )
        raise HttpRefusal(Failure(413, message, code="too_many_values"))
    for function, text in zip(functions, texts, strict=True):
        if isinstance(function.get("arguments"), str | None):
            function["arguments"] = sound_arguments(text)
    return messages


def sound_arguments(text: str) -> str:
    """Return the arguments of a call as a JSON object, which templates demand.

    Clients send back calls that were cut off: the arguments that came are kept. A value that is not an object
    becomes the only argument of one.
    """
    if not text.strip():
        return "{}"
    try:
        found: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return dumped(_cut_off(text))
    if not isinstance(found, dict):
        return dumped({"input": found})
    return text if "\\u" not in text else dumped(found)


def _cut_off(text: str) -> dict[str, object]:
    begun = begun_arguments(text)
    if begun is None:
        return {"input": text}
    kept: dict[str, object] = {}
    for argument in begun.arguments:
        kept[argument.name] = argument.text if argument.is_text else argument.value
        if argument.is_whole or not argument.is_text:
            try:
                kept[argument.name] = json.loads(argument.value, parse_constant=_no_constant)
            except (ValueError, RecursionError):
                kept[argument.name] = argument.value
    return kept


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def choose_tools(fields: dict[str, object], choice: str, names: Sequence[str] = ()) -> None:
    """Set `tool_choice` to `choice`: `auto`, `none` or `required`. `names`: offer only these tools.

    llama-server has no choice by name, so the other tools are omitted. Raises HttpRefusal.
    """
    known = {name_of_tool(tool): tool for tool in objects_of(fields.get("tools"))}
    for name in names:
        if name not in known:
            shown = ", ".join(f"`{tool[:100]}`" for tool in list(known)[:_MOST_NAMES])
            among = f"`tools`: {shown}" if shown else "`tools`"
            message = f"`tool_choice` names the tool `{name[:100]}`, which is not among {among}"
            raise invalid(message, "tool_choice")
    if choice == "required" and not known:
        message = "`tool_choice` requires a tool, but `tools` has none that can be offered"
        raise invalid(message, "tool_choice")
    if names:
        fields["tools"] = [known[name] for name in dict.fromkeys(names)]
    fields.pop("tool_choice", None)
    if known:
        fields["tool_choice"] = choice


def name_of_tool(tool: Mapping[str, object]) -> str:
    """Return a function's name; empty if it has none."""
    return text_of(object_of(tool, "function"), "name")


def function_tool(name: str, description: object, parameters: object, **more: object) -> dict[str, object]:
    """Return a tool as a chat offers it."""
    function: dict[str, object] = {"name": name, **more}
    if isinstance(description, str) and description:
        function["description"] = description
    if isinstance(parameters, dict):
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def schema_format(schema: object, name: object = None) -> dict[str, object]:
    """Return the `response_format` that enforces a JSON schema. Raises HttpRefusal."""
    if not isinstance(schema, dict):
        raise invalid("the answer's format needs a JSON schema in `schema`", "format.schema")
    named = name if isinstance(name, str) and name else "answer"
    return {"type": "json_schema", "json_schema": {"name": named, "schema": schema}}


_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}  # which templates do not know


def effort_of(asked: Mapping[str, object]) -> str:
    """Return how much a model is to reason, by `effort`; empty if it is not given."""
    effort = text_of(asked, "effort")
    return _EFFORTS.get(effort, effort)


def stream_fields(stream: bool) -> dict[str, object]:
    """Return the fields that request a stream whose last event counts the tokens."""
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


_DONE = b"[DONE]"
_MOST_CALLS = 128  # of tools, in one answer; another node may send it


class CallPiece(NamedTuple):
    """More of the tool call with this `number`; `id` and `name` come with the first piece."""

    number: int
    id: str
    name: str
    arguments: str


class AnswerUsage(NamedTuple):
    """Tokens of the prompt, how many of those were cached, and tokens generated."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0


class ChatPiece(NamedTuple):
    """A whole answer, or what one event of a stream adds to it.

    `reason`: OpenAI's `finish_reason`. `is_last`: the stream is over.
    """

    text: str = ""
    thought: str = ""
    calls: tuple[CallPiece, ...] = ()
    reason: str = ""
    usage: AnswerUsage | None = None
    is_last: bool = False


def event_fields(events: bytes) -> Iterator[Mapping[str, object] | None]:
    """Yield the JSON objects of whole server-sent events, and None for the last; skip anything else."""
    for data in map(event_data, whole_events(events)):
        fields = parsed(data)
        if data == _DONE or isinstance(fields, dict):
            yield fields if isinstance(fields, dict) else None


def failure_of(fields: Mapping[str, object]) -> Failure | None:
    """Read the failure in an event, if it is an error: llama-server broke off the answer."""
    error = fields.get("error")
    return object_failure(error, 500) if isinstance(error, dict) else None


def usage_of(fields: Mapping[str, object]) -> AnswerUsage | None:
    """Read the `usage` of an answer or event, if it has one; missing or invalid numbers are 0."""
    if not isinstance(usage := fields.get("usage"), dict):
        return None
    cached = object_of(usage, "prompt_tokens_details").get("cached_tokens")
    found = (usage.get("prompt_tokens"), cached, usage.get("completion_tokens"))
    prompt, from_cache, generated = (figure if is_number(figure) else 0 for figure in found)
    return AnswerUsage(prompt, min(from_cache, prompt), generated)


def _calls_of(message: Mapping[str, object]) -> Iterator[CallPiece]:
    for at, call in enumerate(objects_of(message.get("tool_calls"))[:_MOST_CALLS]):
        number, of = call.get("index", at), object_of(call, "function")
        if is_number(number) and number < _MOST_CALLS:
            yield CallPiece(number, text_of(call, "id"), text_of(of, "name"), text_of(of, "arguments"))


class ChatAnswering(Answering, ABC):
    """The base of what translates the answer to a chat: it reads a stream and calls a method for each piece.

    `_reason` and `_usage` are known at the end. Each method returns the bytes for the client.
    """

    def __init__(self) -> None:
        self._is_over = False
        self._reason = ""
        self._usage = AnswerUsage()
        self._has_usage = False

    def events(self, events: bytes) -> bytes:
        """Translate whole events of llama-server."""
        out = bytearray()
        for fields in event_fields(events):
            if self._is_over:
                break
            if fields is not None and (failure := failure_of(fields)) is not None:
                out += self.failed(failure)
                break
            piece = ChatPiece(is_last=True) if fields is None else self._read(fields)
            if piece.thought:
                out += self._thought(piece.thought)
            if piece.text:
                out += self._text(piece.text)
            for call in piece.calls:
                out += self._called(call)
            self._note_end(piece)
            if piece.is_last:
                self._is_over = True
                out += self._end()
        return bytes(out)

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        self._is_over = True
        return self._failed(failure)

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        whole = self._read(answer)
        self._note_end(whole)
        self._has_usage = True
        return self._whole(whole)

    def _read(self, fields: Mapping[str, object]) -> ChatPiece:
        """Read an event, or a whole answer; missing parts are empty."""
        choices = (of for of in objects_of(fields.get("choices")) if of.get("index", 0) == 0)
        choice: Mapping[str, object] = next(choices, {})
        message = object_of(choice, "delta") or object_of(choice, "message")
        return ChatPiece(
            text_of(message, "content"),
            text_of(message, "reasoning_content"),
            tuple(_calls_of(message)),
            text_of(choice, "finish_reason"),
            usage_of(fields),
        )

    def _note_end(self, piece: ChatPiece) -> None:
        self._reason = piece.reason or self._reason
        if piece.usage is not None:
            self._usage, self._has_usage = piece.usage, True

    @abstractmethod
    def _thought(self, text: str) -> bytes: ...

    @abstractmethod
    def _text(self, text: str) -> bytes: ...

    @abstractmethod
    def _called(self, piece: CallPiece) -> bytes: ...

    @abstractmethod
    def _failed(self, failure: Failure) -> bytes: ...

    @abstractmethod
    def _end(self) -> bytes: ...

    @abstractmethod
    def _whole(self, whole: ChatPiece) -> dict[str, object]: ...


class CountAnswering(Answering):
    """The answering of a count of tokens, which is never a stream. `head`: preceding fields."""

    def __init__(self, **head: object) -> None:
        self._head = head

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Return the count as the client's dialect has it."""
        counted = answer.get("input_tokens")
        return {**self._head, "input_tokens": counted if is_number(counted) else 0}


_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PARTS = ("text", "image_url", "input_audio", "input_video", "video_url", "refusal")
_ERROR = b'"error"'  # in an event: within generated text the quotation marks are escaped
_NO_CHOICE = "`tool_choice` must be `auto`, `none`, `required` or name a function"


class PassedOn(Answering):
    """The answering that leaves all as llama-server sends it, but for errors."""

    passes_on = True

    def events(self, events: bytes) -> bytes:
        """Return the events unchanged, or an error in OpenAI's form."""
        objects = filter(None, event_fields(events)) if _ERROR in events else ()
        failure = next(filter(None, map(failure_of, objects)), None)
        return events if failure is None else self.failed(failure)

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        return sse({"error": failure.error()})


class PlainDialect(Dialect):
    """The dialect of a `path` with llama-server's own fields and answers."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        return Translation(self._path, asked, wants_stream(asked), PassedOn())


class ChatDialect(PlainDialect):
    """The dialect of chats; it rewrites messages in forms that no template takes."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        check_number(asked, "temperature", 0, 2)
        check_number(asked, "top_p", 0, 1)
        fields = {**asked, "messages": _messages(asked.get("messages"))}
        _judge_tools(fields)
        _judge_format(fields)
        notes = ("web_search_options",) if fields.get("web_search_options") is not None else ()
        return replace(super().read(fields, facts), notes=notes)


def _messages(given: object) -> list[Message]:
    if not isinstance(given, list):
        raise invalid("`messages` must be a list of messages", "messages")
    if not given:
        raise invalid("`messages` is empty: at least one message is needed", "messages")
    return sound_calls([_message(message, f"messages[{at}]") for at, message in enumerate(given)])


def _message(given: object, where: str) -> Message:
    if not isinstance(given, dict):
        raise invalid(f"`{where}` must be an object", where)
    # role
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES:
        message = f"`{where}.role` is `{str(role)[:50]}`: it must be one of {', '.join(_ROLES)}"
        raise invalid(message, f"{where}.role")
    made: Message = dict(given)
    if role == "function":  # the older form of a tool's result
        made["role"] = "tool"
    # content
    if content is None and role == "assistant":
        made["content"] = ""
    elif content is None:
        raise invalid(f"`{where}.content` is missing", f"{where}.content")
    elif isinstance(content, list):
        made["content"] = [_part(part, f"{where}.content[{at}]") for at, part in enumerate(content)]
    elif not isinstance(content, str):
        raise invalid(f"`{where}.content` must be a string or a list of parts", f"{where}.content")
    # calls of tools; the older form of a call has no id
    calls, called = made.pop("tool_calls", None), made.pop("function_call", None)
    calls = calls or ([{"id": "", "function": called}] if called is not None else [])
    if not isinstance(calls, list):
        raise invalid(f"`{where}.tool_calls` must be a list", f"{where}.tool_calls")
    if calls:
        made["tool_calls"] = [_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]
    # reasoning, which some clients send back in the field in which they have shown it
    if made.get("reasoning_content") is None:
        made.pop("reasoning_content", None)
        thought = made.pop("reasoning", None)
        if isinstance(thought, str) and thought and role == "assistant":
            made["reasoning_content"] = thought
    return made


def _part(part: object, where: str) -> Part:
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        raise invalid(f"`{where}` must be an object with a `type`", where)
    if kind not in _PARTS:
        message = f"`{where}` has the type `{kind[:100]}`, which cannot be given to this model"
        raise invalid(message, f"{where}.type")
    if kind not in ("text", "refusal"):
        return dict(part)
    if not isinstance(text := part.get(kind), str):
        raise invalid(f"`{where}.{kind}` must be a string", f"{where}.{kind}")
    return text_part(text)


def _call(call: object, where: str) -> dict[str, object]:
    function = object_of(call, "function")
    if not isinstance(call, dict) or not text_of(function, "name"):
        raise invalid(f"`{where}.function.name` is missing", f"{where}.function.name")
    return {**call, "type": "function", "function": dict(function)}


def _judge_tools(fields: dict[str, object]) -> None:
    # the tools, of which only functions can be offered
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if fields.get(name) is not None:
            raise invalid(f"`{name}` is OpenAI's older form of `{instead}`: send `{instead}`", name)
    tools, choice = optional(fields, "tools", list, "`tools` must be a list"), fields.get("tool_choice")
    if tools is None:
        fields.pop("tools", None)
    for at, tool in enumerate(tools or []):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            message = f"`tools[{at}]` of type `{str(kind)[:100]}` cannot be offered: define a `function`"
            raise invalid(message, f"tools[{at}].type")
        if not name_of_tool(tool):
            raise invalid(f"`tools[{at}].function.name` is missing", f"tools[{at}].function.name")
    # the choice among them, which llama-server knows only for all together
    match choice:
        case {"type": "function"} if isinstance(choice, dict):
            choose_tools(fields, "required", [name_of_tool(choice)])
        case {"type": "allowed_tools", "allowed_tools": {**allowed}}:
            names = [name_of_tool(tool) for tool in objects_of(allowed.get("tools"))]
            choose_tools(fields, "required" if allowed.get("mode") == "required" else "auto", names)
        case "required":
            choose_tools(fields, choice)
        case "auto" | "none" if tools:
            choose_tools(fields, str(choice))
        case None:
            fields.pop("tool_choice", None)
        case _ if isinstance(choice, dict) or tools:
            raise invalid(_NO_CHOICE, "tool_choice")
        case _:
            fields.pop("tool_choice", None)


def _judge_format(fields: Mapping[str, object]) -> None:
    if (wanted := fields.get("response_format")) is None:
        return
    kind = text_of(wanted, "type")
    if kind not in ("text", "json_object", "json_schema"):
        message = "`response_format.type` must be `text`, `json_object` or `json_schema`"
        raise invalid(message, "response_format.type")
    if kind == "json_schema" and not isinstance(object_of(wanted, "json_schema").get("schema"), dict):
        message = "`response_format.json_schema.schema` must be a JSON schema"
        raise invalid(message, "response_format.json_schema.schema")
