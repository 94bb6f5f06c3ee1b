"""Anthropic's Messages API (https://docs.claude.com/en/api/messages), translated to chats and back."""

import json
import re
from collections.abc import Iterator, Mapping

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.fields import check_number, objects_of, text_of, wants_stream
from meshd.gateway.dialects.interface import RequestFacts, Translation
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


def _usage_of(used: chat.AnswerUsage) -> dict[str, object]:
    return {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.generated,
    }


class MessagesAnswering:
    """Implements Answering. One block is open at a time; a new one closes it."""

    content_type = "text/event-stream"
    passes_on = False

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._has_begun = False
        self._is_over = False
        self._blocks = 0
        self._open = ""  # the type of the block that is open
        self._call = -1  # the number of its call, if it is one
        self._reason = ""
        self._usage = chat.AnswerUsage(0, 0, 0)

    def events(self, events: bytes) -> bytes:
        """Translate whole events of llama-server."""
        if self._is_over:
            return b""
        out = bytearray()
        for step in chat.read_steps(events):
            match step:
                case chat.ThoughtPiece(text):
                    out += self._block("thinking", {"thinking": "", "signature": ""})
                    out += self._delta({"type": "thinking_delta", "thinking": text})
                case chat.TextPiece(text):
                    out += self._block("text", {"text": ""})
                    out += self._delta({"type": "text_delta", "text": text})
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
        """Return the end of a stream that breaks off with this failure."""
        self._is_over = True
        return chat.sse(messages_error(failure), name="error")

    def comment(self, text: str) -> bytes:
        """Return a comment."""
        return chat.sse_comment(text)

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Translate a whole answer."""
        whole = chat.read_whole(answer)
        blocks: list[dict[str, object]] = []
        if whole.thought:
            blocks.append({"type": "thinking", "thinking": whole.thought, "signature": ""})
        if whole.text or not (whole.thought or whole.calls):
            blocks.append({"type": "text", "text": whole.text})
        for call in whole.calls:
            given: object = json.loads(chat.sound_arguments(call.arguments))  # one that was cut off has less
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
        return self._message(blocks, _STOP_REASONS.get(whole.reason, "end_turn"), whole.usage)

    def _message(
        self, blocks: list[dict[str, object]], reason: str | None, used: chat.AnswerUsage
    ) -> dict[str, object]:
        return {
            "id": f"msg_{self._facts.id}",
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": _usage_of(used),
        }

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = self._message([], None, self._usage)
        return chat.sse({"type": "message_start", "message": message}, name="message_start")

    def _block(self, kind: str, empty: dict[str, object], call: int = -1) -> bytes:
        """Begin a block, unless it is already open."""
        if self._open == kind and self._call == call:
            return b""
        out = self._begin() + self._close()
        self._open, self._call = kind, call
        self._blocks += 1
        start = {"type": "content_block_start", "index": self._blocks - 1}
        return out + chat.sse({**start, "content_block": {"type": kind, **empty}}, name="content_block_start")

    def _delta(self, delta: dict[str, object]) -> bytes:
        event = {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}
        return chat.sse(event, name="content_block_delta")

    def _called(self, step: chat.CallPiece) -> bytes:
        if step.number < self._call:
            return b""  # llama-server makes one call after the other
        empty: dict[str, object] = {"id": step.id, "name": step.name, "input": {}}
        out = self._block("tool_use", empty, step.number)
        if step.arguments:
            out += self._delta({"type": "input_json_delta", "partial_json": step.arguments})
        return out

    def _close(self) -> bytes:
        if not self._open:
            return b""
        out = b""
        if self._open == "thinking":  # which clients demand, though nobody can sign here
            out = self._delta({"type": "signature_delta", "signature": ""})
        self._open, self._call = "", -1
        stop = {"type": "content_block_stop", "index": self._blocks - 1}
        return out + chat.sse(stop, name="content_block_stop")

    def _end(self) -> bytes:
        self._is_over = True
        out = self._begin() + self._close()
        delta = {"stop_reason": _STOP_REASONS.get(self._reason, "end_turn"), "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": _usage_of(self._usage)}
        return (
            out
            + chat.sse(last, name="message_delta")
            + chat.sse({"type": "message_stop"}, name="message_stop")
        )


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


class MessagesDialect:
    """Implements Dialect. `counts`: for `/v1/messages/count_tokens`, which generates nothing."""

    def __init__(self, *, counts: bool = False) -> None:
        self._counts = counts

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        _check(asked, needs_length=not self._counts)
        notes: list[str] = []
        fields: dict[str, object] = {name: asked[name] for name in _KEPT if asked.get(name) is not None}
        fields["messages"] = [*_system(asked.get("system")), *_messages(asked["messages"], notes)]
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


def _check(asked: Mapping[str, object], *, needs_length: bool) -> None:
    messages = asked.get("messages")
    if messages is None:
        raise invalid("messages: Field required", "messages")
    if not isinstance(messages, list):
        raise invalid("messages: Input should be a valid list", "messages")
    if not messages:
        raise invalid("messages: at least one message is required", "messages")
    if needs_length and asked.get("max_tokens") is None:
        raise invalid("max_tokens: Field required", "max_tokens")
    check_number(asked, "max_tokens", 1, _MOST_TOKENS, whole=True)
    check_number(asked, "temperature", 0, 1)
    check_number(asked, "top_p", 0, 1)
    check_number(asked, "top_k", 0, _MOST_TOKENS, whole=True)
    stops = asked.get("stop_sequences")
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        raise invalid("stop_sequences: Input should be a list of strings", "stop_sequences")


def _system(system: object) -> list[chat.Message]:
    if system is None:
        return []
    if isinstance(system, str):
        texts = [system]
    elif isinstance(system, list):
        texts = [text_of(block, "text") for block in objects_of(system)]
    else:
        raise invalid("system: Input should be a string or a list of text blocks", "system")
    text = "\n".join(_without_stamp(text_part) for text_part in texts if text_part)
    return [{"role": "system", "content": text}] if text else []


def _without_stamp(text: str) -> str:
    return _BILLING.sub("fffff", text, count=1) if text.startswith(_BILLING_HEADER) else text


def _messages(messages: object, notes: list[str]) -> list[chat.Message]:
    made: list[chat.Message] = []
    for at, message in enumerate(messages if isinstance(messages, list) else []):
        where = f"messages.{at}"
        if not isinstance(message, dict):
            raise invalid(f"{where}: Input should be an object", where)
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise invalid(
                f'{where}.role: Unexpected role "{str(role)[:50]}". Allowed roles are "user" or "assistant"',
                f"{where}.role",
            )
        if isinstance(content, str):
            blocks: list[object] = [chat.text_part(content)]
        elif isinstance(content, list):
            blocks = content
        else:
            raise invalid(
                f"{where}.content: Input should be a string or a list of blocks", f"{where}.content"
            )
        if role == "assistant":
            _add_assistant(made, blocks, f"{where}.content", notes)
        else:
            _add_user(made, str(role), blocks, f"{where}.content", notes)
    return chat.sound_calls(chat.grown(made))


def _known_blocks(blocks: list[object], where: str, notes: list[str]) -> Iterator[tuple[str, str, chat.Part]]:
    """Yield the place, type and fields of each known block. Raises HttpRefusal."""
    for at, block in enumerate(blocks):
        here = f"{where}.{at}"
        if not isinstance(block, dict):
            raise invalid(f"{here}: Input should be an object", here)
        kind = text_of(block, "type")
        if _LEFT_OUT.fullmatch(kind):
            if kind != "redacted_thinking":
                notes.append(f"blocks of type `{kind}`")
            continue
        yield here, kind, block


def _add_assistant(made: list[chat.Message], blocks: list[object], where: str, notes: list[str]) -> None:
    parts: list[chat.Part] = []
    calls: list[dict[str, object]] = []
    thoughts: list[str] = []
    for here, kind, block in _known_blocks(blocks, where, notes):
        match kind:
            case "text":
                parts.append(chat.text_part(_text(block, here)))
            case "thinking":
                thoughts.append(text_of(block, "thinking"))
            case "tool_use":
                calls.append(_call(block, here))
            case _:
                parts += _media(block, kind, here)
    message: chat.Message = {"role": "assistant", "content": chat.content_of(parts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    if made and made[-1]["role"] == "assistant" and made[-1].get("tool_calls") and calls:
        chat.add_to_assistant(made, **{name: value for name, value in message.items() if name != "role"})
    elif parts or thought or calls:
        made.append(message)


def _call(block: Mapping[str, object], here: str) -> dict[str, object]:
    name, given = text_of(block, "name"), block.get("input")
    if not name:
        raise invalid(f"{here}.name: Field required", f"{here}.name")
    arguments = given if isinstance(given, str) else chat.dumped(given if isinstance(given, dict) else {})
    return chat.call_of(text_of(block, "id"), name, arguments)


def _add_user(
    made: list[chat.Message], role: str, blocks: list[object], where: str, notes: list[str]
) -> None:
    parts: list[chat.Part] = []
    for here, kind, block in _known_blocks(blocks, where, notes):
        if kind == "tool_result":
            made.append(chat.result_message(_result_id(block, here), _result(block, here, notes)))
        elif kind == "text":
            parts.append(chat.text_part(_text(block, here)))
        else:
            parts += _media(block, kind, here)
    if parts or not blocks:  # behind the results, which templates want next to their calls
        made.append({"role": role, "content": chat.content_of(parts)})


def _result_id(block: Mapping[str, object], here: str) -> str:
    if not (id := text_of(block, "tool_use_id")):
        raise invalid(f"{here}.tool_use_id: Field required", f"{here}.tool_use_id")
    return id


def _result(block: Mapping[str, object], here: str, notes: list[str]) -> str | list[chat.Part]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"{here}.content: Input should be a string or a list of blocks", f"{here}.content")
    parts: list[chat.Part] = []
    for place, kind, inner in _known_blocks(content, f"{here}.content", notes):
        parts += [chat.text_part(_text(inner, place))] if kind == "text" else _media(inner, kind, place)
    return chat.result_of(parts)


def _text(block: Mapping[str, object], here: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise invalid(f"{here}.text: Input should be a string", f"{here}.text")
    return text


def _media(block: Mapping[str, object], kind: str, here: str) -> list[chat.Part]:
    """Read an image, a document or a search result. Raises HttpRefusal for any other block."""
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        if source.get("type") == "base64":
            media = text_of(source, "media_type") or "image/jpeg"
            return [chat.image_part(f"data:{media};base64,{text_of(source, 'data')}")]
        if source.get("type") == "url":
            return [chat.image_part(text_of(source, "url"))]
    if kind == "document" and isinstance(source, dict):
        return _document(block, source, here)
    if kind == "search_result":
        texts = [text_of(part, "text") for part in objects_of(block.get("content"))]
        return [chat.text_part(_titled(text_of(block, "title"), text_of(block, "source"), "\n".join(texts)))]
    message = f"{here}: a block of type `{kind[:100]}` cannot be given to this model"
    raise invalid(message, here)


def _document(block: Mapping[str, object], source: Mapping[str, object], here: str) -> list[chat.Part]:
    title, about = text_of(block, "title"), text_of(block, "context")
    if source.get("type") == "text":
        return [chat.text_part(_titled(title, about, text_of(source, "data")))]
    if source.get("type") == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [chat.text_part(_titled(title, about, content))]
        parts: list[chat.Part] = []
        for at, inner in enumerate(objects_of(content)):
            place, kind = f"{here}.source.content.{at}", text_of(inner, "type")
            parts += [chat.text_part(_text(inner, place))] if kind == "text" else _media(inner, kind, place)
        return parts
    what = text_of(source, "media_type") or text_of(source, "type") or "this kind"
    message = f"{here}.source: a document of `{what[:100]}` cannot be read: send its text (`type: text`)"
    raise invalid(message, f"{here}.source")


def _titled(title: str, about: str, text: str) -> str:
    head = "\n".join(line for line in (title, about) if line)
    return f"<document>\n{head}\n{text}\n</document>" if head else f"<document>\n{text}\n</document>"


def _add_tools(fields: dict[str, object], asked: Mapping[str, object], notes: list[str]) -> None:
    given = asked.get("tools")
    if given is not None and not isinstance(given, list):
        raise invalid("tools: Input should be a valid list", "tools")
    offered = []
    for at, tool in enumerate(given or []):
        if not isinstance(tool, dict):
            raise invalid(f"tools.{at}: Input should be an object", f"tools.{at}")
        kind, name = text_of(tool, "type"), text_of(tool, "name")
        if _SERVER_TOOLS.fullmatch(kind):
            notes.append(f"tool `{kind}`")
            continue
        if kind not in ("", "custom"):
            message = f"tools.{at}: a tool of type `{kind[:100]}` cannot be offered: define it as `custom`"
            raise invalid(message, f"tools.{at}.type")
        if not name:
            raise invalid(f"tools.{at}.name: Field required", f"tools.{at}.name")
        schema = tool.get("input_schema")
        offered.append(
            chat.function_tool(name, tool.get("description"), schema if isinstance(schema, dict) else {})
        )
    if asked.get("mcp_servers"):
        notes.append("mcp_servers")
    if offered:
        fields["tools"] = offered
    _add_choice(fields, asked.get("tool_choice"))


def _add_choice(fields: dict[str, object], choice: object) -> None:
    if choice is None:
        return
    kind = text_of(choice, "type") if isinstance(choice, dict) else ""
    match kind:
        case "auto" | "none":
            chat.choose_tools(fields, kind)
        case "any":
            chat.choose_tools(fields, "required")
        case "tool" if isinstance(choice, dict):
            chat.choose_tools(fields, "required", [text_of(choice, "name")])
        case _:
            raise invalid(
                "tool_choice: Input should have `type` `auto`, `any`, `tool` or `none`", "tool_choice"
            )
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False


def _add_thinking(fields: dict[str, object], asked: Mapping[str, object]) -> None:
    thinking, config = asked.get("thinking"), asked.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        check_number(thinking, "budget_tokens", 0, _MOST_TOKENS, whole=True)
        budget = thinking.get("budget_tokens")
        fields["thinking_budget_tokens"] = 10000 if budget is None else budget
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        fields["reasoning_effort"] = "none"
    elif isinstance(config, dict) and (effort := chat.effort_of(config)):
        fields["reasoning_effort"] = effort


def _add_format(fields: dict[str, object], asked: Mapping[str, object]) -> None:
    config = asked.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    wanted = asked.get("output_format") if wanted is None else wanted
    if wanted is None:
        return
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise HttpRefusal(
            Failure(
                400, "output_config.format: Input should have `type` `json_schema`", param="output_config"
            )
        )
    fields["response_format"] = chat.schema_format(wanted.get("schema"))
