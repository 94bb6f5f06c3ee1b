"""A chat in llama-server's form, to which dialects translate requests and from which they read answers.

The pieces of a request come first, then the steps of an answer: a stream is read event by event, a whole
answer at once, and both yield the same texts, thoughts and calls.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshd.base.peer_limits import API_BODY_PARTS, API_BODY_VALUES
from meshd.gateway.continuation import begun_arguments
from meshd.gateway.dialects.fields import is_number, objects_of, text_of
from meshd.gateway.events import whole_events
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
    if not parts:
        return ""
    only = parts[0]
    return str(only["text"]) if len(parts) == 1 and only["type"] == "text" else list(parts)


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


def add_to_assistant(messages: list[Message], **fields: object) -> None:
    """Add to the assistant's message at the end of `messages`, or begin one; `grown` joins the pieces."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    for name, value in fields.items():
        if name == "tool_calls" and isinstance(value, list):
            grow(messages[-1], name, *value)
        else:
            grow(messages[-1], name, value)


def grow(message: Message, name: str, *more: object) -> None:
    """Add to a list, content or text of a message, which must not be used before `grown`."""
    held = message.get(name)
    if not isinstance(held, Growing):
        calls = held if name == "tool_calls" and isinstance(held, list) else [held]
        held = message[name] = Growing(value for value in calls if value)
    held += [value for value in more if value]


def grown(messages: list[Message]) -> list[Message]:
    """Join all that has grown in these messages, in place, and return them."""
    for message in messages:
        for name, held in message.items():
            if not isinstance(held, Growing):
                continue
            if name == "content":
                message[name] = joined(*held)
            elif name == "tool_calls":
                message[name] = list(held)
            else:
                message[name] = "".join(map(str, held))
    return messages


def joined(*contents: object) -> str | list[Part]:
    """Return the contents of messages as one."""
    at = next(
        (at for at, content in enumerate(contents) if not isinstance(content, str | None)), len(contents)
    )
    text = "\n\n".join(str(content) for content in contents[:at] if content)
    if at == len(contents):
        return text
    return [part for content in (text, *contents[at:]) for part in _parts(content)]


def _parts(content: object) -> list[Part]:
    if isinstance(content, list):
        return [part for part in content if isinstance(part, dict)]
    return [text_part(content)] if isinstance(content, str) and content else []


def dumped(value: object) -> str:
    """Return JSON as models are trained to read it, without escaping letters."""
    return json.dumps(value, ensure_ascii=False)


def sound_calls(messages: list[Message]) -> list[Message]:
    """Make the arguments of all calls JSON objects, in place. Raises HttpRefusal for too many values.

    They are JSON within a string, so they were not counted with the body; quotation marks and brackets in
    their texts count as well.
    """
    functions = [
        function
        for message in messages
        for call in objects_of(message.get("tool_calls"))
        if isinstance(function := call.get("function"), dict)
    ]
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
    if begun is None or not begun.arguments:
        return {"input": text} if begun is None else {}
    kept: dict[str, object] = {}
    for argument in begun.arguments:
        if argument.is_text and not argument.is_whole:
            kept[argument.name] = argument.text
            continue
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
    tools = fields.get("tools")
    offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    known = {name_of_tool(tool): tool for tool in offered}
    for name in names:
        if name not in known:
            message = (
                f"`tool_choice` names the tool `{name[:100]}`, which is not among `tools`{_shown(known)}"
            )
            raise invalid(message, "tool_choice")
    if choice == "required" and not offered:
        raise invalid(
            "`tool_choice` requires a tool, but `tools` has none that can be offered", "tool_choice"
        )
    if names:
        fields["tools"] = [known[name] for name in dict.fromkeys(names)]
    if offered:
        fields["tool_choice"] = choice
    else:
        fields.pop("tool_choice", None)


def name_of_tool(tool: Mapping[str, object]) -> str:
    """Return a function's name; empty if it has none."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _shown(known: Mapping[str, object]) -> str:
    names = [f"`{name[:100]}`" for name in known][:_MOST_NAMES]
    return f": {', '.join(names)}" if names else ""


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
    return {
        "type": "json_schema",
        "json_schema": {"name": name if isinstance(name, str) and name else "answer", "schema": schema},
    }


_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}  # which templates do not know


def effort_of(asked: Mapping[str, object]) -> str:
    """Return the fields that set how much a model reasons, by `effort`; empty if it is not given."""
    effort = asked.get("effort")
    return _EFFORTS.get(effort, effort) if isinstance(effort, str) else ""


def stream_fields(stream: bool) -> dict[str, object]:
    """Return the fields that request a stream whose last event counts the tokens."""
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


_DATA = re.compile(rb"^data:(.*?)\r?$", re.MULTILINE)
_DONE = b"[DONE]"
_MOST_CALLS = 128  # of tools, in one answer; another node may send it


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of the tool call with this `number`; `id` and `name` come with the first piece."""

    number: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The end of the answer; only figures follow. `reason`: OpenAI's `finish_reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Tokens of the prompt, how many of those were cached, and tokens generated."""

    prompt: int
    cached: int
    generated: int


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """An error event: llama-server broke off the answer."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class StreamDone:
    """The last event of the stream."""


Step = TextPiece | ThoughtPiece | CallPiece | AnswerEnd | AnswerUsage | AnswerFailed | StreamDone


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer. `calls`: with all of their arguments."""

    text: str
    thought: str
    calls: tuple[CallPiece, ...]
    reason: str
    usage: AnswerUsage


def event_fields(events: bytes) -> Iterator[Mapping[str, object] | None]:
    """Yield the JSON objects of whole server-sent events, and None for the last; skip anything else."""
    for event in whole_events(events):
        data = b"\n".join(line.strip() for line in _DATA.findall(event))
        if data == _DONE:
            yield None
            continue
        try:
            fields: object = json.loads(data) if data else None
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            yield fields


def read_steps(events: bytes) -> Iterator[Step]:
    """Read whole server-sent events of a streamed chat; skip unknown events."""
    for fields in event_fields(events):
        if fields is None:
            yield StreamDone()
        else:
            yield from _steps_of(fields)


def _steps_of(fields: Mapping[str, object]) -> Iterator[Step]:
    error = fields.get("error")
    if isinstance(error, dict):
        yield AnswerFailed(object_failure(error, 500))
        return
    for choice in objects_of(fields.get("choices")):
        if choice.get("index", 0) != 0:
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            yield from _pieces_of(delta)
        if reason := text_of(choice, "finish_reason"):
            yield AnswerEnd(reason)
    usage = fields.get("usage")
    if isinstance(usage, dict):
        yield usage_of(usage)


def _pieces_of(message: Mapping[str, object]) -> Iterator[TextPiece | ThoughtPiece | CallPiece]:
    """Read a delta, or a whole message."""
    if thought := text_of(message, "reasoning_content"):
        yield ThoughtPiece(thought)
    if text := text_of(message, "content"):
        yield TextPiece(text)
    for at, call in enumerate(objects_of(message.get("tool_calls"))[:_MOST_CALLS]):
        number, function = call.get("index", at), call.get("function")
        of = function if isinstance(function, dict) else {}
        if is_number(number) and number < _MOST_CALLS:
            yield CallPiece(number, text_of(call, "id"), text_of(of, "name"), text_of(of, "arguments"))


def read_whole(answer: Mapping[str, object]) -> ChatAnswer:
    """Read a whole chat completion; missing parts are empty."""
    choices = objects_of(answer.get("choices"))
    first = choices[0] if choices else {}
    message, usage = first.get("message"), answer.get("usage")
    pieces = list(_pieces_of(message)) if isinstance(message, dict) else []
    return ChatAnswer(
        text="".join(piece.text for piece in pieces if isinstance(piece, TextPiece)),
        thought="".join(piece.text for piece in pieces if isinstance(piece, ThoughtPiece)),
        calls=tuple(piece for piece in pieces if isinstance(piece, CallPiece)),
        reason=text_of(first, "finish_reason") or "stop",
        usage=usage_of(usage if isinstance(usage, dict) else {}),
    )


def usage_of(usage: Mapping[str, object]) -> AnswerUsage:
    """Read OpenAI's `usage`; missing or invalid numbers are 0."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    found = [usage.get("prompt_tokens"), cached, usage.get("completion_tokens")]
    prompt, from_cache, generated = (figure if is_number(figure) else 0 for figure in found)
    return AnswerUsage(prompt, min(from_cache, prompt), generated)


class CountAnswering:
    """Implements Answering for a count of tokens, which is never a stream. `head`: preceding fields."""

    content_type = "application/json"
    passes_on = False

    def __init__(self, **head: object) -> None:
        self._head = head

    def events(self, events: bytes) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def failed(self, failure: Failure) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def comment(self, text: str) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Return the count as the client's dialect has it."""
        counted = answer.get("input_tokens")
        return {**self._head, "input_tokens": counted if is_number(counted) else 0}


def sse(data: Mapping[str, object], *, name: str = "") -> bytes:
    """Write one server-sent event, named `name`."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def sse_comment(text: str) -> bytes:
    """Write a comment of one line, which clients skip (WHATWG HTML, 9.2.6)."""
    return f": {' '.join(text.split())}\n\n".encode("utf-8", "replace")
