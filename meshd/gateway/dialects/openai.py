"""OpenAI's chats, and all other requests in llama-server's own form.

https://platform.openai.com/docs/api-reference/chat/create

Requests that OpenAI's servers refuse are refused; llama-server's answers stay unchanged.
"""

from collections.abc import Mapping
from dataclasses import replace

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.fields import check_number, objects_of, text_of, wants_stream
from meshd.gateway.dialects.interface import RequestFacts, Translation
from meshd.gateway.failure import Failure, invalid

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PARTS = ("text", "image_url", "input_audio", "input_video", "video_url", "refusal")
_ERROR = b'"error"'  # in an event: within generated text the quotation marks are escaped


def openai_error(failure: Failure) -> dict[str, object]:
    """Return the JSON of an error."""
    return {"error": failure.error()}


class PassedOn:
    """Implements Answering: all but errors stays as llama-server sends it."""

    content_type = "text/event-stream"
    passes_on = True

    def events(self, events: bytes) -> bytes:
        """Return the events unchanged, or an error in OpenAI's form."""
        if _ERROR not in events:
            return events
        failed = next((step for step in chat.read_steps(events) if isinstance(step, chat.AnswerFailed)), None)
        return events if failed is None else self.failed(failed.failure)

    def failed(self, failure: Failure) -> bytes:
        """Return the end of a stream that breaks off with this failure."""
        return chat.sse(openai_error(failure))

    def comment(self, text: str) -> bytes:
        """Return a comment."""
        return chat.sse_comment(text)

    def whole(self, answer: Mapping[str, object]) -> dict[str, object]:
        """Return the answer unchanged."""
        return dict(answer)


class PlainDialect:
    """Implements Dialect for a `path` with llama-server's own fields and answers."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        return Translation(self._path, asked, wants_stream(asked), PassedOn())

    def error(self, failure: Failure) -> dict[str, object]:
        """Return a failure as JSON."""
        return openai_error(failure)


class ChatDialect(PlainDialect):
    """Implements Dialect for chats; it rewrites messages in forms that no template takes."""

    def read(self, asked: dict[str, object], facts: RequestFacts) -> Translation:
        """Check and translate a body. Raises HttpRefusal."""
        check_number(asked, "temperature", 0, 2)
        check_number(asked, "top_p", 0, 1)
        fields = {**asked, "messages": _messages(asked.get("messages"))}
        _judge_tools(fields)
        _judge_format(fields)
        notes = ("web_search_options",) if fields.get("web_search_options") is not None else ()
        return replace(super().read(fields, facts), notes=notes)


def _messages(given: object) -> list[chat.Message]:
    if not isinstance(given, list):
        raise invalid("`messages` must be a list of messages", "messages")
    if not given:
        raise invalid("`messages` is empty: at least one message is needed", "messages")
    messages = [_message(message, f"messages[{at}]") for at, message in enumerate(given)]
    has_calls = any("tool_calls" in message for message in messages)
    return chat.sound_calls(messages) if has_calls else messages


def _message(given: object, where: str) -> chat.Message:
    if not isinstance(given, dict):
        raise invalid(f"`{where}` must be an object", where)
    # role
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES:
        message = f"`{where}.role` is `{str(role)[:50]}`: it must be one of {', '.join(_ROLES)}"
        raise invalid(message, f"{where}.role")
    made: chat.Message = dict(given)
    if role == "function":  # the older form of a tool's result
        made["role"] = "tool"
    # content
    if content is None:
        if role != "assistant":
            raise invalid(f"`{where}.content` is missing", f"{where}.content")
        made["content"] = ""
    elif isinstance(content, list):
        made["content"] = [_part(part, f"{where}.content[{at}]") for at, part in enumerate(content)]
    elif not isinstance(content, str):
        raise invalid(f"`{where}.content` must be a string or a list of parts", f"{where}.content")
    # calls of tools
    calls, called = made.pop("tool_calls", None), made.pop("function_call", None)
    if called is not None and not calls:  # the older form of a call, which has no id
        calls = [{"id": "", "function": called}]
    if calls:
        if not isinstance(calls, list):
            raise invalid(f"`{where}.tool_calls` must be a list", f"{where}.tool_calls")
        made["tool_calls"] = [_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]
    # reasoning
    if made.get("reasoning_content") is None:
        thought = made.pop("reasoning", None)  # as some clients send back what they have shown
        made.pop("reasoning_content", None)
        if isinstance(thought, str) and thought and role == "assistant":
            made["reasoning_content"] = thought
    return made


def _part(part: object, where: str) -> dict[str, object]:
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        raise invalid(f"`{where}` must be an object with a `type`", where)
    if kind not in _PARTS:
        message = f"`{where}` has the type `{kind[:100]}`, which cannot be given to this model"
        raise invalid(message, f"{where}.type")
    if kind in ("text", "refusal"):
        text = part.get(kind)
        if not isinstance(text, str):
            raise invalid(f"`{where}.{kind}` must be a string", f"{where}.{kind}")
        return {"type": "text", "text": text}
    return dict(part)


def _call(call: object, where: str) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not text_of(function, "name"):
        raise invalid(f"`{where}.function.name` is missing", f"{where}.function.name")
    return {**call, "type": "function", "function": dict(function)}


def _judge_tools(fields: dict[str, object]) -> None:
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if fields.get(name) is not None:
            raise invalid(f"`{name}` is OpenAI's older form of `{instead}`: send `{instead}`", name)
    if tools is None:
        fields.pop("tools", None)
    elif not isinstance(tools, list):
        raise invalid("`tools` must be a list", "tools")
    for at, tool in enumerate(tools or []):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            message = f"`tools[{at}]` of type `{str(kind)[:100]}` cannot be offered: define a `function`"
            raise invalid(message, f"tools[{at}].type")
        if not chat.name_of_tool(tool):
            raise invalid(f"`tools[{at}].function.name` is missing", f"tools[{at}].function.name")
    if isinstance(choice, dict):
        _choose(fields, choice)
    elif choice in ("auto", "none", "required") and tools:
        chat.choose_tools(fields, str(choice))
    elif choice == "required":
        chat.choose_tools(fields, "required")
    elif choice is None or not tools:
        fields.pop("tool_choice", None)
    else:
        raise invalid("`tool_choice` must be `auto`, `none`, `required` or name a function", "tool_choice")


def _choose(fields: dict[str, object], choice: Mapping[str, object]) -> None:
    if (kind := choice.get("type")) == "function":
        chat.choose_tools(fields, "required", [chat.name_of_tool(choice)])
        return
    allowed = choice.get("allowed_tools")
    if kind == "allowed_tools" and isinstance(allowed, dict):
        names = [chat.name_of_tool(tool) for tool in objects_of(allowed.get("tools"))]
        mode = text_of(allowed, "mode")
        chat.choose_tools(fields, mode if mode in ("auto", "required") else "auto", names)
        return
    raise invalid("`tool_choice` must be `auto`, `none`, `required` or name a function", "tool_choice")


def _judge_format(fields: Mapping[str, object]) -> None:
    wanted = fields.get("response_format")
    if wanted is None:
        return
    if not isinstance(wanted, dict) or wanted.get("type") not in ("text", "json_object", "json_schema"):
        message = "`response_format.type` must be `text`, `json_object` or `json_schema`"
        raise invalid(message, "response_format.type")
    inner = wanted.get("json_schema")
    if wanted["type"] == "json_schema" and not (
        isinstance(inner, dict) and isinstance(inner.get("schema"), dict)
    ):
        message = "`response_format.json_schema.schema` must be a JSON schema"
        raise invalid(message, "response_format.json_schema.schema")
