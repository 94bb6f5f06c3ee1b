"""OpenAI's Responses API: requests become chats, and answers numbered events or whole responses.

https://platform.openai.com/docs/api-reference/responses

Every published type of item is accepted. Tools that only OpenAI's servers have, such as web search, are
omitted and noted.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.dialect import Dialect, RequestFacts, Translation, sse
from meshd.gateway.dialects.fields import (
    Endpoint,
    check_number,
    fields_of,
    object_of,
    objects_of,
    optional,
    text_of,
    wants_stream,
)
from meshd.gateway.failure import Failure, invalid

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# What a response repeats of its request, and what it says where the request left it out.
_REPEATED: Mapping[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}
_MOST_REPEATED = 64 << 10  # letters of one of these: each response would bear all of the tools thrice


class OfferedTool(NamedTuple):
    """A tool: its name for llama-server (`flat`) and for the client, its `namespace`, and its kind."""

    flat: str
    name: str
    namespace: str = ""
    is_custom: bool = False


OfferedTools = Mapping[str, OfferedTool]
"""Tools by their flat names."""
_NO_TOOL = OfferedTool("", "")


@dataclass(slots=True)
class _Item:
    """One item of the answer, at `index` of the output, with its `text` so far."""

    kind: str  # reasoning, message or call
    index: int
    id: str
    text: str = ""
    call_id: str = ""
    tool: OfferedTool = _NO_TOOL
    number: int = -1  # of the call

    @property
    def place(self) -> dict[str, object]:
        """Return the fields by which an event names the item."""
        return {"item_id": self.id, "output_index": self.index}

    @property
    def part(self) -> dict[str, object]:
        """Return the only part of a text or of reasoning."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def made(self, status: str) -> dict[str, object]:
        """Return the item as the output has it, as far as it has come."""
        fields: dict[str, object] = {"id": self.id, "status": status}
        if self.kind == "reasoning":
            return {**fields, "type": "reasoning", "summary": [], "content": [self.part]}
        if self.kind == "message":
            return {**fields, "type": "message", "role": "assistant", "content": [self.part]}
        fields |= {"call_id": self.call_id, "name": self.tool.name}
        if self.tool.namespace:
            fields["namespace"] = self.tool.namespace
        if not self.tool.is_custom:
            return {**fields, "type": "function_call", "arguments": self.text}
        # the input of a custom tool is the text that is its only argument
        given: object = json.loads(chat.sound_arguments(self.text))
        return {**fields, "type": "custom_tool_call", "input": text_of(given, "input")}


class ResponsesAnswering(chat.ChatAnswering):
    """The writer of responses. One item is open at a time; a new one closes it."""

    def __init__(self, facts: RequestFacts, asked: Mapping[str, object], tools: OfferedTools) -> None:
        super().__init__()
        self._facts = facts
        self._repeated = {name: _repeated(asked, name, value) for name, value in _REPEATED.items()}
        self._tools = tools
        self._number = 0  # of the next event
        self._done: list[dict[str, object]] = []
        self._item: _Item | None = None
        self._pieces: list[str] = []  # of the item that is open
        self._has_begun = False

    def _thought(self, text: str) -> bytes:
        return self._delta("reasoning", "reasoning_text.delta", text)

    def _text(self, text: str) -> bytes:
        return self._delta("message", "output_text.delta", text, logprobs=[])

    def _called(self, piece: chat.CallPiece) -> bytes:
        item, out = self._item, b""
        if item is None or item.number != piece.number:
            if item is not None and piece.number < item.number:
                return b""  # llama-server makes one call after the other
            out, item = self._added(self._call_item(piece))
        if not piece.arguments:
            return out
        self._pieces.append(piece.arguments)
        if item.tool.is_custom:
            return out  # its input is a text within the arguments, which are known when they are whole
        return out + self._event("function_call_arguments.delta", **item.place, delta=piece.arguments)

    def _failed(self, failure: Failure) -> bytes:
        """Return the end of the stream: some clients look for `error`, others for `response.failed`.

        The AI SDK (opencode) retries for minutes if its stream begins with an error that is not the request's
        fault, or if `error` comes first. For faults of the request it reads the code from `error`.
        """
        cause: dict[str, object] = {"code": failure.code or failure.type, "message": failure.message}
        error = {**cause, "param": failure.param, "error": failure.error()}
        if failure.status < 500:
            return self._begin() + self._event("error", **error) + self._ended("failed", error=cause)
        has_output = self._item is not None or self._done
        out = b"" if has_output else self._open("message")
        return out + self._ended("failed", error=cause) + self._event("error", **error)

    def _end(self) -> bytes:
        return self._begin() + self._close(self._last_status) + self._ended(self._last_status)

    def _whole(self, whole: chat.ChatPiece) -> dict[str, object]:
        # as a stream of as many pieces, whose events nobody gets
        if whole.thought:
            self._thought(whole.thought)
        if whole.text or not (whole.thought or whole.calls):
            self._text(whole.text)
        for call in whole.calls:
            self._called(call)
        self._close(self._last_status)
        return self._response(self._last_status, self._done)

    @property
    def _last_status(self) -> str:
        return "incomplete" if self._reason in _INCOMPLETE else "completed"

    def _event(self, kind: str, **fields: object) -> bytes:
        """Return the next event, of `kind`, all of which but `error` are of the response."""
        name = kind if kind == "error" else f"response.{kind}"
        self._number += 1
        return sse({"type": name, "sequence_number": self._number - 1, **fields}, name=name)

    def _ended(self, status: str, **more: object) -> bytes:
        return self._event(status, response={**self._response(status, self._done), **more})

    def _response(self, status: str, output: list[dict[str, object]]) -> dict[str, object]:
        used, reason = self._usage, _INCOMPLETE.get(self._reason)
        usage = {
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
            "output_tokens": used.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt + used.generated,
        }
        return {
            "id": f"resp_{self._facts.id}",
            "object": "response",
            "created_at": self._facts.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "model": self._facts.model,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "usage": usage if self._has_usage and status != "in_progress" else None,
            **self._repeated,
        }

    def _id(self, kind: str, index: int) -> str:
        return f"{kind}_{self._facts.id}{index:03x}"

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response("in_progress", [])
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def _open(self, kind: str) -> bytes:
        """Begin an item for text or reasoning, unless it is open."""
        if self._item is not None and self._item.kind == kind:
            return b""
        index = self._next_index
        out, item = self._added(_Item(kind, index, self._id("rs" if kind == "reasoning" else "msg", index)))
        return out + self._event("content_part.added", **item.place, content_index=0, part=item.part)

    def _added(self, item: _Item) -> tuple[bytes, _Item]:
        """Begin an item, which ends the one before."""
        out = self._begin() + self._close("completed")
        self._item, made = item, item.made("in_progress")
        shown = made if item.kind == "call" else {**made, "content": []}
        return out + self._event("output_item.added", output_index=item.index, item=shown), item

    @property
    def _next_index(self) -> int:
        return len(self._done) + (self._item is not None)

    def _delta(self, item: str, kind: str, text: str, **more: object) -> bytes:
        out = self._open(item)
        self._pieces.append(text)
        place = self._item.place if self._item is not None else {}
        return out + self._event(kind, **place, content_index=0, delta=text, **more)

    def _call_item(self, call: chat.CallPiece) -> _Item:
        index = self._next_index
        tool = self._tools.get(call.name, OfferedTool(call.name, call.name))
        id = self._id("ctc" if tool.is_custom else "fc", index)
        call_id = call.id or self._id("call", index)
        return _Item("call", index, id, call_id=call_id, tool=tool, number=call.number)

    def _close(self, status: str) -> bytes:
        """End the open item, if any."""
        if (item := self._item) is None:
            return b""
        item.text, self._item = "".join(self._pieces), None
        self._pieces.clear()
        made, place = item.made(status), item.place
        self._done.append(made)
        if item.tool.is_custom:
            given = made["input"]
            out = self._event("custom_tool_call_input.delta", **place, delta=given)
            out += self._event("custom_tool_call_input.done", **place, input=given)
        elif item.kind == "call":
            named = {"name": made["name"], "arguments": item.text}
            out = self._event("function_call_arguments.done", **place, **named)
        else:
            is_text = item.kind == "message"
            more: dict[str, object] = {"logprobs": []} if is_text else {}
            kind = "output_text.done" if is_text else "reasoning_text.done"
            out = self._event(kind, **place, content_index=0, text=item.text, **more)
            out += self._event("content_part.done", **place, content_index=0, part=item.part)
        return out + self._event("output_item.done", output_index=item.index, item=made)


def _repeated(asked: Mapping[str, object], name: str, otherwise: object) -> object:
    value = asked.get(name)
    return otherwise if value is None or len(json.dumps(value)) > _MOST_REPEATED else value


# Of a chat's fields those that are translated; all others of llama-server are passed on.
_TRANSLATED = (
    *("messages", "tools", "tool_choice", "response_format", "stream", "stream_options", "n", "n_cmpl"),
    *("logprobs", "top_logprobs", "reasoning_effort", "max_tokens", "max_completion_tokens"),
)
_KEPT = tuple(name for name in fields_of(Endpoint.CHAT) if name not in _TRANSLATED)
_ROLES = ("user", "assistant", "system", "developer")
_SERVER_TOOLS = re.compile(
    r"(?:web_search|web_search_preview|file_search|code_interpreter|image_generation|mcp|computer"
    r"|computer_use|computer_use_preview|tool_search)(?:_\d{4}_\d\d_\d\d|_\d{8})?"
)
# Items of tools that OpenAI's servers run, and others that say nothing to another model.
_LEFT_OUT = re.compile(
    r"(?:web_search|file_search|code_interpreter|image_generation|mcp|tool_search)_call"
    r"|computer_call(?:_output)?|mcp_list_tools|mcp_approval_(?:request|response)|item_reference"
    r"|(?:context_)?compaction|compaction_trigger|program(?:_output)?|tool_search_output|ghost_snapshot"
    r"|additional_tools|configuration_update"
)
_CALLS_OF_CLIENTS = frozenset({"local_shell_call", "shell_call", "apply_patch_call"})
_MOST_TOKENS = 1 << 30
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class ResponsesDialect(Dialect):
    """The dialect. `counts`: for `/v1/responses/input_tokens`, which generates nothing."""

    def __init__(self, *, counts: bool = False) -> None:
        self._counts = counts

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        _check(asked)
        notes: list[str] = []
        fields: dict[str, object] = {name: asked[name] for name in _KEPT if asked.get(name) is not None}
        tools = _add_tools(fields, asked, notes)
        fields["messages"] = _messages(asked, notes)
        if effort := chat.effort_of(object_of(asked, "reasoning")):
            fields["reasoning_effort"] = effort
        _add_format(fields, asked.get("text"))
        if self._counts:
            counting = chat.CountAnswering(object="response.input_tokens")
            path = "/v1/chat/completions/input_tokens"
            return Translation(path, fields, False, counting, tuple(notes))
        stream = wants_stream(asked)
        if (most := asked.get("max_output_tokens")) is not None:
            fields["max_tokens"] = most
        if (probs := asked.get("top_logprobs")) and not stream:
            fields |= {"logprobs": True, "top_logprobs": probs}
        fields |= chat.stream_fields(stream)
        answering = ResponsesAnswering(facts, asked, tools)
        return Translation("/v1/chat/completions", fields, stream, answering, tuple(notes))


def _check(asked: Mapping[str, object]) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if asked.get(name):
            message = f"`{name}` is not supported, because answers are not stored: send the whole `input`"
            raise invalid(message, name)
    if asked.get("background") is True:
        raise invalid("`background` is not supported: answers are not stored", "background")
    check_number(asked, "max_output_tokens", 1, _MOST_TOKENS, whole=True)
    check_number(asked, "temperature", 0, 2)
    check_number(asked, "top_p", 0, 1)
    check_number(asked, "top_logprobs", 0, 20, whole=True)


def _messages(asked: Mapping[str, object], notes: list[str]) -> list[chat.Message]:
    instructions = optional(asked, "instructions", str, "`instructions` must be a string")
    made: list[chat.Message] = [{"role": "system", "content": instructions}] if instructions else []
    given = asked.get("input")
    if isinstance(given, str):
        return [*made, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid("`input` must be a string or a list of items", "input")
    before = len(made)
    for at, item in enumerate(given):
        if not isinstance(item, dict):
            raise invalid(f"`input[{at}]` must be an object", f"input[{at}]")
        _add_item(made, item, f"input[{at}]", notes)
    if len(made) == before:
        raise invalid("`input` has no message that can be given to the model", "input")
    return chat.sound_calls(chat.grown(made))


def _add_item(made: list[chat.Message], item: Mapping[str, object], where: str, notes: list[str]) -> None:
    kind = text_of(item, "type") or ("message" if "role" in item else "")
    match kind:
        case "message":
            _add_message(made, item, where, notes)
        case "reasoning":
            thought = "".join(text_of(part, "text") for part in objects_of(item.get("content")))
            if thought:  # a summary is not what the model thought, and what is encrypted nobody can read
                _begin_assistant(made)
                chat.add_to_assistant(made, {"reasoning_content": thought})
        case "function_call" | "custom_tool_call":
            _add_call(made, item, where, is_custom=kind == "custom_tool_call")
        case "function_call_output" | "custom_tool_call_output":
            made.append(chat.result_message(_call_id(item, where), _output(item.get("output"), where, notes)))
        case _ if kind in _CALLS_OF_CLIENTS:
            action = item.get("action", item.get("operation"))
            arguments = chat.dumped(action if isinstance(action, dict) else {})
            call = chat.call_of(_call_id(item, where), kind.removesuffix("_call"), arguments)
            chat.add_to_assistant(made, {"tool_calls": [call]})
        case _ if kind.removesuffix("_output") in _CALLS_OF_CLIENTS:
            output = item.get("output")
            text = output if isinstance(output, str) else chat.dumped(output)
            made.append(chat.result_message(_call_id(item, where), text))
        case _ if _LEFT_OUT.fullmatch(kind):
            notes.append(f"items of type `{kind}`")
        case _:
            raise invalid(f"`{where}` has the type `{kind[:100]}`, which is not known", f"{where}.type")


def _begin_assistant(made: list[chat.Message]) -> None:
    """Begin another assistant's message for reasoning, if the last one has content or calls already."""
    last = made[-1] if made else {}
    if last.get("role") == "assistant" and (last.get("content") or last.get("tool_calls")):
        made.append({"role": "assistant", "content": ""})


def _add_message(made: list[chat.Message], item: Mapping[str, object], where: str, notes: list[str]) -> None:
    role = item.get("role")
    if role not in _ROLES:
        message = f"`{where}.role` is `{str(role)[:50]}`: it must be one of {', '.join(_ROLES)}"
        raise invalid(message, f"{where}.role")
    content = chat.content_of(list(_parts(item.get("content"), f"{where}.content", notes)))
    last = made[-1] if made else {}
    if role == "assistant" and last.get("role") == "assistant" and not last.get("tool_calls"):
        chat.add_to_assistant(made, {"content": content})
    else:
        made.append({"role": role, "content": content})


def _parts(content: object, where: str, notes: list[str]) -> Iterator[chat.Part]:
    """Read the parts of a message or of a tool's output. Raises HttpRefusal."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise invalid(f"`{where}` must be a string or a list of parts", where)
    for at, part in enumerate(parts):
        here, kind = f"{where}[{at}]", text_of(part, "type")
        match kind:
            case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                yield chat.text_part(text_of(part, "text"))
            case "refusal":
                yield chat.text_part(text_of(part, "refusal"))
            case "input_image":
                url = text_of(object_of(part, "image_url"), "url") or text_of(part, "image_url")
                if not url:
                    place = f"{here}.image_url"
                    raise invalid(f"`{place}` must be a data URL: no files are stored here", place)
                yield chat.image_part(url)
            case "input_file":
                name = text_of(part, "filename") or "a file"
                raise invalid(f"`{here}`: {name[:100]} cannot be read: send its text as `input_text`", here)
            case "input_audio":
                yield dict(part)
            case "computer_screenshot" | "encrypted_content":
                notes.append(f"parts of type `{kind}`")
            case _:
                message = f"`{here}` has the type `{kind[:100]}`, which cannot be given to this model"
                raise invalid(message, f"{here}.type")


def _call_id(item: Mapping[str, object], where: str) -> str:
    if id := text_of(item, "call_id") or text_of(item, "id"):
        return id
    raise invalid(f"`{where}.call_id` is missing", f"{where}.call_id")


def _add_call(made: list[chat.Message], item: Mapping[str, object], where: str, *, is_custom: bool) -> None:
    if not (name := text_of(item, "name")):
        raise invalid(f"`{where}.name` is missing", f"{where}.name")
    given = item.get("input") if is_custom else item.get("arguments")
    text = given if isinstance(given, str) else chat.dumped(given if given is not None else {})
    arguments = chat.dumped({"input": text}) if is_custom else text
    call = chat.call_of(_call_id(item, where), flat_name(text_of(item, "namespace"), name), arguments)
    chat.add_to_assistant(made, {"tool_calls": [call]})


def _output(output: object, where: str, notes: list[str]) -> str | list[chat.Part]:
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, list):
        return chat.result_of(list(_parts(output, f"{where}.output", notes)))
    return chat.dumped(output)


def flat_name(space: str, name: str) -> str:
    """Return the name, among all tools, of a tool of the namespace `space`, if it is of one."""
    return f"{space}{name}" if not space or space.endswith("__") else f"{space}__{name}"


def _add_tools(fields: dict[str, object], asked: Mapping[str, object], notes: list[str]) -> OfferedTools:
    offered: dict[str, OfferedTool] = {}
    made = []
    for at, tool in enumerate(optional(asked, "tools", list, "`tools` must be a list") or []):
        if not isinstance(tool, dict):
            raise invalid(f"`tools[{at}]` must be an object", f"tools[{at}]")
        for known, function in _tools_of(tool, f"tools[{at}]", notes):
            if known.flat not in offered:
                offered[known.flat] = known
                made.append(function)
    if made:
        fields["tools"] = made
    _add_choice(fields, asked.get("tool_choice"), offered)
    return offered


def _tools_of(
    tool: Mapping[str, object], where: str, notes: list[str], space: str = ""
) -> Iterator[tuple[OfferedTool, dict[str, object]]]:
    """Yield the tools to offer for one entry of `tools`. Raises HttpRefusal."""
    kind, name = text_of(tool, "type"), text_of(tool, "name")
    if _SERVER_TOOLS.fullmatch(kind):
        notes.append(f"tool `{kind}`")
        return
    if kind not in ("function", "custom", "namespace"):
        message = f"`{where}` of type `{kind[:100]}` cannot be offered: define a `function`"
        raise invalid(message, f"{where}.type")
    if not name:
        raise invalid(f"`{where}.name` is missing", f"{where}.name")
    if kind == "namespace" and not space:
        for at, inner in enumerate(objects_of(tool.get("tools"))):
            yield from _tools_of(inner, f"{where}.tools[{at}]", notes, name)
        return
    known = OfferedTool(flat_name(space, name), name, space, is_custom=kind == "custom")
    if known.is_custom:
        described = chat.function_tool(known.flat, _described(tool), _INPUT)
    else:
        strict = tool.get("strict") is not False
        parameters, description = tool.get("parameters"), tool.get("description")
        described = chat.function_tool(known.flat, description, parameters, strict=strict)
    yield known, described


def _described(tool: Mapping[str, object]) -> str:
    """Describe a custom tool with the format of its input, which llama-server's grammar cannot enforce."""
    grammar = text_of(object_of(tool, "format"), "definition")
    form = f"Its form is:\n{grammar}" if grammar else ""
    lines = (text_of(tool, "description"), "Put the whole text for this tool into `input`.", form)
    return "\n".join(filter(None, lines))


def _add_choice(fields: dict[str, object], choice: object, offered: OfferedTools) -> None:
    chosen = choice if isinstance(choice, dict) else {}
    match choice:
        case None:
            pass
        case "auto" | "none" | "required":
            chat.choose_tools(fields, str(choice))
        case {"type": "function" | "custom"}:
            chat.choose_tools(fields, "required", [_flat_choice(chosen, offered)])
        case {"type": "allowed_tools"}:
            tools = objects_of(chosen.get("tools"))
            kinds = ("function", "custom")
            names = [_flat_choice(tool, offered) for tool in tools if tool.get("type") in kinds]
            chat.choose_tools(fields, "required" if chosen.get("mode") == "required" else "auto", names)
        case _ if kind := text_of(choice, "type"):
            raise invalid(f"`tool_choice` demands `{kind[:100]}`, which cannot be offered", "tool_choice")
        case _:
            raise invalid("`tool_choice` must be `auto`, `none`, `required` or name a tool", "tool_choice")


def _flat_choice(choice: Mapping[str, object], offered: OfferedTools) -> str:
    name, space = text_of(choice, "name"), text_of(choice, "namespace")
    found = () if space else (tool.flat for tool in offered.values() if tool.name == name)
    return next(iter(found), flat_name(space, name))


def _add_format(fields: dict[str, object], text: object) -> None:
    wanted = text.get("format") if isinstance(text, dict) else None
    if wanted is None:
        return
    match text_of(wanted, "type"):
        case "json_schema" if isinstance(wanted, dict):
            fields["response_format"] = chat.schema_format(wanted.get("schema"), wanted.get("name"))
        case "json_object":
            fields["response_format"] = {"type": "json_object"}
        case "text":
            pass
        case _:
            message = "`text.format.type` must be `text`, `json_object` or `json_schema`"
            raise invalid(message, "text.format.type")
