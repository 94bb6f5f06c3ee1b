"""Anthropic's Messages API (https://docs.claude.com/en/api/messages), translated to chats and back."""

import json
import re
from collections.abc import Iterator, Mapping

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.dialect import Dialect, RequestFacts, Translation, sse
from meshd.gateway.dialects.fields import check_number, object_of, objects_of, optional, text_of, wants_stream
from meshd.gateway.failure import CONTEXT_EXCEEDED, Failure, HttpRefusal, invalid

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
# Clients ask again for minutes after an `overloaded_error`, whatever else the answer says.
_OVERLOADED = frozenset({"busy", "queue_timeout"})


def messages_error(failure: Failure) -> dict[str, object]:
    """Return the JSON of an error (https://docs.claude.com/en/api/errors)."""
    kind = _ERROR_TYPES.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    kind = "overloaded_error" if failure.code in _OVERLOADED else kind
    message = failure.message
    if failure.code == CONTEXT_EXCEEDED:  # clients look for these words, and read the counts
        counts = f": {failure.context[0]} tokens > {failure.context[1]} maximum" if failure.context else ""
        message = f"prompt is too long{counts} (shorten it, or raise `--ctx-size` of `meshd serve`)"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, name=kind)


class MessagesAnswering(chat.ChatAnswering):
    """The writer of messages. One block is open at a time; a new one closes it."""

    def __init__(self, facts: RequestFacts) -> None:
        super().__init__()
        self._facts = facts
        self._has_begun = False
        self._blocks = 0
        self._open = ""  # the type of the block that is open
        self._call = -1  # the number of its call, if it is one

    def _thought(self, text: str) -> bytes:
        block = self._block("thinking", thinking="", signature="")
        return block + self._delta("thinking_delta", thinking=text)

    def _text(self, text: str) -> bytes:
        return self._block("text", text="") + self._delta("text_delta", text=text)

    def _called(self, piece: chat.CallPiece) -> bytes:
        if piece.number < self._call:
            return b""  # llama-server makes one call after the other
        out = self._block("tool_use", piece.number, id=piece.id, name=piece.name, input={})
        return out + (
            self._delta("input_json_delta", partial_json=piece.arguments) if piece.arguments else b""
        )

    def _failed(self, failure: Failure) -> bytes:
        return sse(messages_error(failure), name="error")

    def _end(self) -> bytes:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        last = _event("message_delta", delta=delta, usage=self._used)
        return self._begin() + self._close() + last + _event("message_stop")

    def _whole(self, whole: chat.ChatPiece) -> dict[str, object]:
        blocks: list[dict[str, object]] = []
        if whole.thought:
            blocks.append({"type": "thinking", "thinking": whole.thought, "signature": ""})
        if whole.text or not (whole.thought or whole.calls):
            blocks.append({"type": "text", "text": whole.text})
        for call in whole.calls:
            given: object = json.loads(chat.sound_arguments(call.arguments))  # one that was cut off has less
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
        return self._message(blocks, self._stop_reason)

    @property
    def _stop_reason(self) -> str:
        return _STOP_REASONS.get(self._reason, "end_turn")

    @property
    def _used(self) -> dict[str, object]:
        return {
            "input_tokens": self._usage.prompt - self._usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._usage.cached,
            "output_tokens": self._usage.generated,
        }

    def _message(self, blocks: list[dict[str, object]], reason: str | None) -> dict[str, object]:
        return {
            "id": f"msg_{self._facts.id}",
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": self._used,
        }

    def _begin(self) -> bytes:
        has_begun, self._has_begun = self._has_begun, True
        return b"" if has_begun else _event("message_start", message=self._message([], None))

    def _block(self, kind: str, call: int = -1, **empty: object) -> bytes:
        """Begin a block, unless it is already open."""
        if (self._open, self._call) == (kind, call):
            return b""
        out = self._begin() + self._close()
        self._open, self._call = kind, call
        self._blocks += 1
        block = {"type": kind, **empty}
        return out + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, kind: str, **more: object) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta={"type": kind, **more})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        # clients demand a signature of what was thought, though nobody can sign here
        out = self._delta("signature_delta", signature="") if self._open == "thinking" else b""
        self._open, self._call = "", -1
        return out + _event("content_block_stop", index=self._blocks - 1)


_KEPT = ("model", "temperature", "top_p", "top_k", "chat_template_kwargs", "seed", "min_p")
_ROLES = ("user", "assistant", "system")  # Claude Code sends notes of the system between the others
# What Anthropic's servers run themselves: their calls and results are of no use to another model.
_SERVER_TOOLS = re.compile(
    r"(?:web_search|web_fetch|code_execution|tool_search_tool\w*|mcp_toolset)(?:_\d+)?"
)
_LEFT_OUT = re.compile(
    r"redacted_thinking|server_tool_use|mcp_tool_(?:use|result)|tool_reference|container_upload|fallback"
    r"|(?:web_search|web_fetch|code_execution|bash_code_execution|text_editor_code_execution|tool_search)"
    r"_tool_result"
)
# A stamp that changes with each request, and would keep all that follows from the cache of prompts.
_BILLING = re.compile(r"(?<=cch=)[0-9a-f]{5}(?=;)")
_BILLING_HEADER = "x-anthropic-billing-header:"
_MOST_TOKENS = 1 << 30


class MessagesDialect(Dialect):
    """The dialect. `counts`: for `/v1/messages/count_tokens`, which generates nothing."""

    def __init__(self, *, counts: bool = False) -> None:
        self._counts = counts

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        messages = _checked_messages(asked, needs_length=not self._counts)
        notes: list[str] = []
        fields: dict[str, object] = {name: asked[name] for name in _KEPT if asked.get(name) is not None}
        fields["messages"] = [*_system(asked.get("system")), *_messages(messages, notes)]
        _add_tools(fields, asked, notes)
        _add_thinking(fields, asked)
        _add_format(fields, asked)
        if self._counts:
            path = "/v1/chat/completions/input_tokens"
            return Translation(path, fields, False, chat.CountAnswering(), tuple(notes))
        stream = wants_stream(asked)
        fields["max_tokens"] = asked["max_tokens"]
        if stops := asked.get("stop_sequences"):
            fields["stop"] = stops
        fields |= chat.stream_fields(stream)
        return Translation("/v1/chat/completions", fields, stream, MessagesAnswering(facts), tuple(notes))

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as JSON."""
        return messages_error(failure)


def _fault(where: str, what: str) -> HttpRefusal:
    """Return the refusal of a wrong field, worded as Anthropic's servers do."""
    return invalid(f"{where}: {what}", where)


def _checked_messages(asked: Mapping[str, object], *, needs_length: bool) -> list[object]:
    messages = optional(asked, "messages", list, "messages: Input should be a valid list")
    if messages is None:
        raise _fault("messages", "Field required")
    if not messages:
        raise _fault("messages", "at least one message is required")
    if needs_length and asked.get("max_tokens") is None:
        raise _fault("max_tokens", "Field required")
    check_number(asked, "max_tokens", 1, _MOST_TOKENS, whole=True)
    check_number(asked, "temperature", 0, 1)
    check_number(asked, "top_p", 0, 1)
    check_number(asked, "top_k", 0, _MOST_TOKENS, whole=True)
    stops = asked.get("stop_sequences")
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        raise _fault("stop_sequences", "Input should be a list of strings")
    return messages


def _system(system: object) -> list[chat.Message]:
    if system is not None and not isinstance(system, str | list):
        raise _fault("system", "Input should be a string or a list of text blocks")
    texts = [system] if isinstance(system, str) else [text_of(block, "text") for block in objects_of(system)]
    text = "\n".join(_without_stamp(text_part) for text_part in texts if text_part)
    return [{"role": "system", "content": text}] if text else []


def _without_stamp(text: str) -> str:
    return _BILLING.sub("fffff", text, count=1) if text.startswith(_BILLING_HEADER) else text


def _messages(messages: list[object], notes: list[str]) -> list[chat.Message]:
    made: list[chat.Message] = []
    for at, message in enumerate(messages):
        where = f"messages.{at}"
        if not isinstance(message, dict):
            raise _fault(where, "Input should be an object")
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            allowed = 'Allowed roles are "user" or "assistant"'
            raise _fault(f"{where}.role", f'Unexpected role "{str(role)[:50]}". {allowed}')
        blocks = [chat.text_part(content)] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise _fault(f"{where}.content", "Input should be a string or a list of blocks")
        known = _known_blocks(blocks, f"{where}.content", notes)
        if role == "assistant":
            _add_assistant(made, known)
        else:
            _add_user(made, str(role), known, notes, is_empty=not blocks)
    return chat.sound_calls(chat.grown(made))


_Blocks = Iterator[tuple[str, str, chat.Part]]


def _known_blocks(blocks: list[object], where: str, notes: list[str]) -> _Blocks:
    """Yield the place, type and fields of each known block. Raises HttpRefusal."""
    for at, block in enumerate(blocks):
        here = f"{where}.{at}"
        if not isinstance(block, dict):
            raise _fault(here, "Input should be an object")
        kind = text_of(block, "type")
        if not _LEFT_OUT.fullmatch(kind):
            yield here, kind, block
        elif kind != "redacted_thinking":
            notes.append(f"blocks of type `{kind}`")


def _add_assistant(made: list[chat.Message], blocks: _Blocks) -> None:
    parts: list[chat.Part] = []
    calls: list[dict[str, object]] = []
    thought = ""
    for here, kind, block in blocks:
        match kind:
            case "thinking":
                thought += text_of(block, "thinking")
            case "tool_use":
                calls.append(_call(block, here))
            case _:
                parts += _content(block, kind, here)
    message: chat.Message = {"content": chat.content_of(parts)}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    if made and made[-1]["role"] == "assistant" and made[-1].get("tool_calls") and calls:
        chat.add_to_assistant(made, message)
    elif parts or thought or calls:
        made.append({"role": "assistant", **message})


def _call(block: Mapping[str, object], here: str) -> dict[str, object]:
    given = block.get("input")
    arguments = given if isinstance(given, str) else chat.dumped(object_of(block, "input"))
    return chat.call_of(text_of(block, "id"), _needed(block, "name", here), arguments)


def _needed(of: Mapping[str, object], name: str, here: str) -> str:
    if not (text := text_of(of, name)):
        raise _fault(f"{here}.{name}", "Field required")
    return text


def _add_user(
    made: list[chat.Message], role: str, blocks: _Blocks, notes: list[str], *, is_empty: bool
) -> None:
    parts: list[chat.Part] = []
    for here, kind, block in blocks:
        if kind == "tool_result":
            id = _needed(block, "tool_use_id", here)
            made.append(chat.result_message(id, _result(block, here, notes)))
        else:
            parts += _content(block, kind, here)
    if parts or is_empty:  # behind the results, which templates want next to their calls
        made.append({"role": role, "content": chat.content_of(parts)})


def _result(block: Mapping[str, object], here: str, notes: list[str]) -> str | list[chat.Part]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _fault(f"{here}.content", "Input should be a string or a list of blocks")
    blocks = _known_blocks(content, f"{here}.content", notes)
    return chat.result_of([part for place, kind, inner in blocks for part in _content(inner, kind, place)])


def _content(block: Mapping[str, object], kind: str, here: str) -> list[chat.Part]:
    """Read a text, an image, a document or a search result. Raises HttpRefusal for any other block."""
    source = object_of(block, "source")
    match kind, source.get("type"):
        case "text", _:
            text = block.get("text")
            if not isinstance(text, str):
                raise _fault(f"{here}.text", "Input should be a string")
            return [chat.text_part(text)]
        case "image", "base64":
            media = text_of(source, "media_type") or "image/jpeg"
            return [chat.image_part(f"data:{media};base64,{text_of(source, 'data')}")]
        case "image", "url":
            return [chat.image_part(text_of(source, "url"))]
        case "document", _ if isinstance(block.get("source"), dict):
            return _document(block, source, here)
        case "search_result", _:
            texts = [text_of(part, "text") for part in objects_of(block.get("content"))]
            return _titled(text_of(block, "title"), text_of(block, "source"), "\n".join(texts))
        case _:
            raise invalid(f"{here}: a block of type `{kind[:100]}` cannot be given to this model", here)


def _document(block: Mapping[str, object], source: Mapping[str, object], here: str) -> list[chat.Part]:
    title, about = text_of(block, "title"), text_of(block, "context")
    content = source.get("content")
    if source.get("type") == "text":
        return _titled(title, about, text_of(source, "data"))
    if source.get("type") != "content":
        what = text_of(source, "media_type") or text_of(source, "type") or "this kind"
        message = f"a document of `{what[:100]}` cannot be read: send its text (`type: text`)"
        raise _fault(f"{here}.source", message)
    if isinstance(content, str):
        return _titled(title, about, content)
    inner = enumerate(objects_of(content))
    places = ((part, text_of(part, "type"), f"{here}.source.content.{at}") for at, part in inner)
    return [made for place in places for made in _content(*place)]


def _titled(title: str, about: str, text: str) -> list[chat.Part]:
    lines = ["<document>", *filter(None, (title, about)), text, "</document>"]
    return [chat.text_part("\n".join(lines))]


def _add_tools(fields: dict[str, object], asked: Mapping[str, object], notes: list[str]) -> None:
    offered = []
    given = optional(asked, "tools", list, "tools: Input should be a valid list")
    for at, tool in enumerate(given or []):
        here, kind = f"tools.{at}", text_of(tool, "type")
        if not isinstance(tool, dict):
            raise _fault(here, "Input should be an object")
        if _SERVER_TOOLS.fullmatch(kind):
            notes.append(f"tool `{kind}`")
            continue
        if kind not in ("", "custom"):
            message = f"{here}: a tool of type `{kind[:100]}` cannot be offered: define it as `custom`"
            raise invalid(message, f"{here}.type")
        name = _needed(tool, "name", here)
        offered.append(chat.function_tool(name, tool.get("description"), object_of(tool, "input_schema")))
    if asked.get("mcp_servers"):
        notes.append("mcp_servers")
    if offered:
        fields["tools"] = offered
    _add_choice(fields, asked.get("tool_choice"))


def _add_choice(fields: dict[str, object], choice: object) -> None:
    if choice is None:
        return
    match text_of(choice, "type"):
        case "auto" | "none" as kind:
            chat.choose_tools(fields, kind)
        case "any":
            chat.choose_tools(fields, "required")
        case "tool":
            chat.choose_tools(fields, "required", [text_of(choice, "name")])
        case _:
            raise _fault("tool_choice", "Input should have `type` `auto`, `any`, `tool` or `none`")
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False


def _add_thinking(fields: dict[str, object], asked: Mapping[str, object]) -> None:
    thinking = object_of(asked, "thinking")
    if thinking.get("type") == "enabled":
        check_number(thinking, "budget_tokens", 0, _MOST_TOKENS, whole=True)
        budget = thinking.get("budget_tokens")
        fields["thinking_budget_tokens"] = 10000 if budget is None else budget
    if thinking.get("type") == "disabled":
        fields["reasoning_effort"] = "none"
    elif effort := chat.effort_of(object_of(asked, "output_config")):
        fields["reasoning_effort"] = effort


def _add_format(fields: dict[str, object], asked: Mapping[str, object]) -> None:
    wanted = object_of(asked, "output_config").get("format")
    wanted = asked.get("output_format") if wanted is None else wanted
    if wanted is None:
        return
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise invalid("output_config.format: Input should have `type` `json_schema`", "output_config")
    fields["response_format"] = chat.schema_format(wanted.get("schema"))
