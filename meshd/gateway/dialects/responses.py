"""OpenAI's Responses API: requests become chats, and answers numbered events or whole responses.

https://platform.openai.com/docs/api-reference/responses

Every published type of item is accepted. Tools that only OpenAI's servers have, such as web search, are
omitted and noted.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.fields import Endpoint, check_number, fields_of, objects_of, text_of, wants_stream
from meshd.gateway.dialects.interface import RequestFacts, Translation
from meshd.gateway.dialects.openai import openai_error
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


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool: its name for llama-server (`flat`) and for the client, its `namespace`, and its kind."""

    flat: str
    name: str
    namespace: str = ""
    is_custom: bool = False


OfferedTools = Mapping[str, OfferedTool]
"""By their flat names."""


@dataclass(slots=True)
class _Item:
    """One item of the answer, at `index` of the output, with its `text` so far."""

    kind: str  # reasoning, message or call
    index: int
    id: str
    text: str = ""
    call_id: str = ""
    tool: OfferedTool | None = None
    number: int = -1  # of the call


class ResponsesAnswering:
    """Implements Answering."""

    content_type = "text/event-stream"
    passes_on = False

    def __init__(self, facts: RequestFacts, asked: Mapping[str, object], tools: OfferedTools) -> None:
        self._facts = facts
        self._repeated = {name: _repeated(asked, name, value) for name, value in _REPEATED.items()}
        self._tools = tools
        self._number = 0  # of the next event
        self._done: list[dict[str, object]] = []
        self._item: _Item | None = None
        self._pieces: list[str] = []  # of the item that is open
        self._has_begun = False
        self._is_over = False
        self._reason = ""
        self._usage: chat.AnswerUsage | None = None

    def events(self, events: bytes) -> bytes:
        """Translate whole events of llama-server."""
        if self._is_over:
            return b""
        out = bytearray()
        for step in chat.read_steps(events):
            match step:
                case chat.ThoughtPiece(text):
                    out += self._open("reasoning") + self._said("response.reasoning_text.delta", text)
                case chat.TextPiece(text):
                    out += self._open("message")
                    out += self._said("response.output_text.delta", text, logprobs=[])
                case chat.CallPiece():
                    out += self._called(step)
                case chat.AnswerEnd(reason):
                    self._reason = reason
                case chat.AnswerUsage():
                    self._usage = step
                case chat.AnswerFailed(failure):
                    return bytes(out) + self.failed(failure)
                case chat.StreamDone():
                    out += self._end()
        return bytes(out)

    def failed(self, failure: Failure) -> bytes:
        """Return the end of the stream: some clients look for `error`, others for `response.failed`.

        The AI SDK (opencode) retries for minutes if its stream begins with an error that is not the request's
        fault, or if `error` comes first. For faults of the request it reads the code from `error`.
        """
        cause: dict[str, object] = {"code": failure.code or failure.type, "message": failure.message}
        error = {**cause, "param": failure.param, "error": failure.error()}
        if failure.status < 500:
            out = self._begin() + self._event("error", **error) + self._ended_with(cause)
        else:
            has_output = self._item is not None or self._done
            out = b"" if has_output else self._open("message")
            out += self._ended_with(cause) + self._event("error", **error)
        self._is_over = True
        return out

    def _ended_with(self, error: dict[str, object]) -> bytes:
        response = {**self._response("failed", self._done), "error": error}
        return self._event("response.failed", response=response)

    def comment(self, text: str) -> bytes:
        """Return a comment."""
        return chat.sse_comment(text)

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        whole = chat.read_whole(answer)
        self._reason, self._usage = whole.reason, whole.usage
        items: list[_Item] = []
        if whole.thought:
            items.append(_Item("reasoning", 0, self._id("rs", 0), whole.thought))
        if whole.text or not (whole.thought or whole.calls):
            items.append(_Item("message", len(items), self._id("msg", len(items)), whole.text))
        for call in whole.calls:
            items.append(self._call_item(call, len(items)))
            items[-1].text = call.arguments
        status = "incomplete" if whole.reason in _INCOMPLETE else "completed"
        made = [_made(item, status if item is items[-1] else "completed") for item in items]
        return self._response(status, made)

    def _event(self, kind: str, **fields: object) -> bytes:
        self._number += 1
        return chat.sse({"type": kind, "sequence_number": self._number - 1, **fields}, name=kind)

    def _response(self, status: str, output: list[dict[str, object]]) -> dict[str, object]:
        used, reason = self._usage, _INCOMPLETE.get(self._reason)
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
            "usage": None if used is None or status == "in_progress" else _usage(used),
            **self._repeated,
        }

    def _id(self, kind: str, index: int) -> str:
        return f"{kind}_{self._facts.id}{index:03x}"

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = self._response("in_progress", [])
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def _place(self, item: _Item) -> dict[str, object]:
        return {"item_id": item.id, "output_index": item.index}

    def _open(self, kind: str) -> bytes:
        """Begin an item for text or reasoning, unless it is open."""
        if self._item is not None and self._item.kind == kind:
            return b""
        out = self._begin() + self._close("completed")
        index = len(self._done)
        item = self._item = _Item(kind, index, self._id("rs" if kind == "reasoning" else "msg", index))
        started = {**_made(item, "in_progress"), "content": []}
        out += self._event("response.output_item.added", output_index=index, item=started)
        added = self._event(
            "response.content_part.added", **self._place(item), content_index=0, part=_part(item)
        )
        return out + added

    def _said(self, kind: str, text: str, **more: object) -> bytes:
        if self._item is None:
            return b""
        self._pieces.append(text)
        return self._event(kind, **self._place(self._item), content_index=0, delta=text, **more)

    def _called(self, step: chat.CallPiece) -> bytes:
        item, out = self._item, b""
        if item is None or item.number != step.number:
            if item is not None and step.number < item.number:
                return b""  # llama-server makes one call after the other
            out = self._begin() + self._close("completed")
            item = self._item = self._call_item(step, len(self._done))
            added = {"output_index": item.index, "item": _made(item, "in_progress")}
            out += self._event("response.output_item.added", **added)
        if not step.arguments:
            return out
        self._pieces.append(step.arguments)
        if item.tool is not None and item.tool.is_custom:
            return out  # its input is a text within the arguments, which are known when they are whole
        delta = {**self._place(item), "delta": step.arguments}
        return out + self._event("response.function_call_arguments.delta", **delta)

    def _call_item(self, call: chat.CallPiece, index: int) -> _Item:
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
        made, place = _made(item, status), self._place(item)
        self._done.append(made)
        if item.kind == "call" and item.tool is not None and item.tool.is_custom:
            given = made["input"]
            out = self._event("response.custom_tool_call_input.delta", **place, delta=given)
            out += self._event("response.custom_tool_call_input.done", **place, input=given)
        elif item.kind == "call":
            named = {"name": made["name"], "arguments": item.text}
            out = self._event("response.function_call_arguments.done", **place, **named)
        else:
            text = {"content_index": 0, "text": item.text}
            if item.kind == "message":
                out = self._event("response.output_text.done", **place, **text, logprobs=[])
            else:
                out = self._event("response.reasoning_text.done", **place, **text)
            out += self._event("response.content_part.done", **place, content_index=0, part=_part(item))
        return out + self._event("response.output_item.done", output_index=item.index, item=made)

    def _end(self) -> bytes:
        status = "incomplete" if self._reason in _INCOMPLETE else "completed"
        out = self._begin() + self._close(status)
        self._is_over = True
        return out + self._event(f"response.{status}", response=self._response(status, self._done))


def _repeated(asked: Mapping[str, object], name: str, otherwise: object) -> object:
    value = asked.get(name)
    if value is None or len(json.dumps(value)) > _MOST_REPEATED:
        return otherwise
    return value


def _part(item: _Item) -> dict[str, object]:
    if item.kind == "reasoning":
        return {"type": "reasoning_text", "text": item.text}
    return {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}


def _made(item: _Item, status: str) -> dict[str, object]:
    """Return an item of the output as far as it has come."""
    if item.kind == "reasoning":
        return {"id": item.id, "type": "reasoning", "summary": [], "content": [_part(item)], "status": status}
    if item.kind == "message":
        made: dict[str, object] = {"id": item.id, "type": "message", "role": "assistant", "status": status}
        return {**made, "content": [_part(item)]}
    tool = item.tool or OfferedTool("", "")
    made = {"id": item.id, "call_id": item.call_id, "name": tool.name, "status": status}
    if tool.namespace:
        made["namespace"] = tool.namespace
    if tool.is_custom:
        return {**made, "type": "custom_tool_call", "input": _free_input(item.text)}
    return {**made, "type": "function_call", "arguments": item.text}


def _free_input(arguments: str) -> str:
    """Return the input of a custom tool: the text that is its only argument."""
    given: object = json.loads(chat.sound_arguments(arguments))
    return text_of(given, "input") if isinstance(given, dict) else ""


def _usage(used: chat.AnswerUsage) -> dict[str, object]:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt + used.generated,
    }


# Of a chat's fields those that are translated; all others of llama-server are passed on.
_TRANSLATED = frozenset(
    {
        *("messages", "tools", "tool_choice", "response_format", "stream", "stream_options"),
        *(
            "logprobs",
            "top_logprobs",
            "reasoning_effort",
            "max_tokens",
            "max_completion_tokens",
            "n",
            "n_cmpl",
        ),
    }
)
_KEPT = tuple(name for name in fields_of(Endpoint.CHAT) if name not in _TRANSLATED)
_ROLES = ("user", "assistant", "system", "developer")
_SERVER_TOOLS = re.compile(
    r"(?:web_search|web_search_preview|file_search|code_interpreter|image_generation|mcp|computer"
    r"|computer_use|computer_use_preview|tool_search)(?:_\d{4}_\d\d_\d\d|_\d{8})?"
)
# Items of tools that OpenAI's servers run, and others that say nothing to another model.
_LEFT_OUT = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request"),
        *("mcp_approval_response", "item_reference", "compaction", "compaction_trigger", "program"),
        *(
            "tool_search_call",
            "tool_search_output",
            "context_compaction",
            "ghost_snapshot",
            "additional_tools",
        ),
        *("program_output", "configuration_update"),
    }
)
_CALLS_OF_CLIENTS = frozenset({"local_shell_call", "shell_call", "apply_patch_call"})
_MOST_TOKENS = 1 << 30
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


class ResponsesDialect:
    """Implements Dialect. `counts`: for `/v1/responses/input_tokens`, which generates nothing."""

    def __init__(self, *, counts: bool = False) -> None:
        self._counts = counts

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        _check(asked)
        notes: list[str] = []
        fields: dict[str, object] = {name: asked[name] for name in _KEPT if asked.get(name) is not None}
        tools = _add_tools(fields, asked, notes)
        fields["messages"] = _messages(asked, notes)
        reasoning = asked.get("reasoning")
        if isinstance(reasoning, dict) and (effort := chat.effort_of(reasoning)):
            fields["reasoning_effort"] = effort
        _add_format(fields, asked.get("text"))
        if self._counts:
            path = "/v1/chat/completions/input_tokens"
            return Translation(
                path, fields, False, chat.CountAnswering(object="response.input_tokens"), tuple(notes)
            )
        stream = wants_stream(asked)
        if (most := asked.get("max_output_tokens")) is not None:
            fields["max_tokens"] = most
        if (probs := asked.get("top_logprobs")) and not stream:
            fields |= {"logprobs": True, "top_logprobs": probs}
        fields |= chat.stream_fields(stream)
        answering = ResponsesAnswering(facts, asked, tools)
        return Translation("/v1/chat/completions", fields, stream, answering, tuple(notes))

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as JSON."""
        return openai_error(failure)


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
    made: list[chat.Message] = []
    instructions, given = asked.get("instructions"), asked.get("input")
    if isinstance(instructions, str) and instructions:
        made.append({"role": "system", "content": instructions})
    elif instructions is not None and not isinstance(instructions, str):
        raise invalid("`instructions` must be a string", "instructions")
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
                chat.add_to_assistant(made, reasoning_content=thought)
        case "function_call" | "custom_tool_call":
            _add_call(made, item, where, is_custom=kind == "custom_tool_call")
        case "function_call_output" | "custom_tool_call_output":
            made.append(chat.result_message(_call_id(item, where), _output(item.get("output"), where, notes)))
        case _ if kind in _CALLS_OF_CLIENTS:
            call = chat.call_of(_call_id(item, where), kind.removesuffix("_call"), chat.dumped(_action(item)))
            chat.add_to_assistant(made, tool_calls=[call])
        case _ if kind.removesuffix("_output") in _CALLS_OF_CLIENTS:
            output = item.get("output")
            text = output if isinstance(output, str) else chat.dumped(output)
            made.append(chat.result_message(_call_id(item, where), text))
        case _ if kind in _LEFT_OUT:
            notes.append(f"items of type `{kind}`")
        case _:
            raise invalid(f"`{where}` has the type `{kind[:100]}`, which is not known", f"{where}.type")


def _action(item: Mapping[str, object]) -> object:
    action = item.get("action", item.get("operation"))
    return action if isinstance(action, dict) else {}


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
        chat.add_to_assistant(made, content=content)
    else:
        made.append({"role": role, "content": content})


def _parts(content: object, where: str, notes: list[str]) -> Iterator[chat.Part]:
    """Read the parts of a message or of a tool's output. Raises HttpRefusal."""
    if isinstance(content, str):
        yield chat.text_part(content)
        return
    if not isinstance(content, list):
        raise invalid(f"`{where}` must be a string or a list of parts", where)
    for at, part in enumerate(content):
        here = f"{where}[{at}]"
        kind = text_of(part, "type") if isinstance(part, dict) else ""
        match kind:
            case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                yield chat.text_part(text_of(part, "text"))
            case "refusal":
                yield chat.text_part(text_of(part, "refusal"))
            case "input_image":
                yield _image(part, here)
            case "input_file":
                yield _file(part, here)
            case "input_audio":
                yield dict(part)
            case "computer_screenshot" | "encrypted_content":
                notes.append(f"parts of type `{kind}`")
            case _:
                message = f"`{here}` has the type `{kind[:100]}`, which cannot be given to this model"
                raise invalid(message, f"{here}.type")


def _image(part: Mapping[str, object], here: str) -> chat.Part:
    url = part.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str) or not url:
        raise invalid(f"`{here}.image_url` must be a data URL: no files are stored here", f"{here}.image_url")
    return chat.image_part(url)


def _file(part: Mapping[str, object], here: str) -> chat.Part:
    name = text_of(part, "filename") or "a file"
    message = f"`{here}`: {name[:100]} cannot be read: send its text as `input_text`"
    raise invalid(message, here)


def _call_id(item: Mapping[str, object], where: str) -> str:
    if id := text_of(item, "call_id") or text_of(item, "id"):
        return id
    raise invalid(f"`{where}.call_id` is missing", f"{where}.call_id")


def _add_call(made: list[chat.Message], item: Mapping[str, object], where: str, *, is_custom: bool) -> None:
    name = text_of(item, "name")
    if not name:
        raise invalid(f"`{where}.name` is missing", f"{where}.name")
    if space := text_of(item, "namespace"):
        name = flat_name(space, name)
    given = item.get("input") if is_custom else item.get("arguments")
    text = given if isinstance(given, str) else chat.dumped(given if given is not None else {})
    call = chat.call_of(_call_id(item, where), name, chat.dumped({"input": text}) if is_custom else text)
    chat.add_to_assistant(made, tool_calls=[call])


def _output(output: object, where: str, notes: list[str]) -> str | list[chat.Part]:
    if output is None or isinstance(output, str):
        return output or ""
    if isinstance(output, list):
        return chat.result_of(list(_parts(output, f"{where}.output", notes)))
    return chat.dumped(output)


def flat_name(space: str, name: str) -> str:
    """Return the name of a namespace's tool among all tools."""
    return f"{space}{name}" if space.endswith("__") else f"{space}__{name}"


def _add_tools(fields: dict[str, object], asked: Mapping[str, object], notes: list[str]) -> OfferedTools:
    given = asked.get("tools")
    if given is not None and not isinstance(given, list):
        raise invalid("`tools` must be a list", "tools")
    offered: dict[str, OfferedTool] = {}
    made = []
    for at, tool in enumerate(given or []):
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
    flat = flat_name(space, name) if space else name
    if kind == "custom":
        described = chat.function_tool(flat, _described(tool), _INPUT)
    else:
        described = chat.function_tool(
            flat, tool.get("description"), tool.get("parameters"), strict=_strict(tool)
        )
    yield OfferedTool(flat, name, space, is_custom=kind == "custom"), described


def _strict(tool: Mapping[str, object]) -> bool:
    return tool.get("strict") is not False


def _described(tool: Mapping[str, object]) -> str:
    """Describe a custom tool with the format of its input, which llama-server's grammar cannot enforce."""
    wanted = tool.get("format")
    grammar = text_of(wanted, "definition") if isinstance(wanted, dict) else ""
    lines = [text_of(tool, "description"), "Put the whole text for this tool into `input`."]
    if grammar:
        lines.append(f"Its form is:\n{grammar}")
    return "\n".join(line for line in lines if line)


def _add_choice(fields: dict[str, object], choice: object, offered: OfferedTools) -> None:
    if choice is None:
        return
    if choice in ("auto", "none", "required"):
        chat.choose_tools(fields, str(choice))
        return
    kind = text_of(choice, "type") if isinstance(choice, dict) else ""
    if isinstance(choice, dict) and kind in ("function", "custom"):
        chat.choose_tools(fields, "required", [_flat_choice(choice, offered)])
    elif isinstance(choice, dict) and kind == "allowed_tools":
        given = objects_of(choice.get("tools"))
        names: Sequence[str] = [
            _flat_choice(tool, offered) for tool in given if text_of(tool, "type") in ("function", "custom")
        ]
        chat.choose_tools(fields, "required" if choice.get("mode") == "required" else "auto", names)
    elif kind:
        raise invalid(f"`tool_choice` demands `{kind[:100]}`, which cannot be offered", "tool_choice")
    else:
        raise invalid("`tool_choice` must be `auto`, `none`, `required` or name a tool", "tool_choice")


def _flat_choice(choice: Mapping[str, object], offered: OfferedTools) -> str:
    name, space = text_of(choice, "name"), text_of(choice, "namespace")
    if space:
        return flat_name(space, name)
    found = [tool.flat for tool in offered.values() if tool.name == name]
    return found[0] if found else name


def _add_format(fields: dict[str, object], text: object) -> None:
    wanted = text.get("format") if isinstance(text, dict) else None
    if wanted is None:
        return
    kind = text_of(wanted, "type") if isinstance(wanted, dict) else ""
    if isinstance(wanted, dict) and kind == "json_schema":
        fields["response_format"] = chat.schema_format(wanted.get("schema"), wanted.get("name"))
    elif kind == "json_object":
        fields["response_format"] = {"type": "json_object"}
    elif kind != "text":
        message = "`text.format.type` must be `text`, `json_object` or `json_schema`"
        raise invalid(message, "text.format.type")
