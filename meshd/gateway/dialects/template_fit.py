"""Fit the messages of a chat to the model's chat template.

Templates differ in what they accept: one system message at the beginning or several anywhere, two messages of
one role in a row or none, tool calls and results or neither. If a template refuses a message, llama-server
fails; if it skips one, the model never sees it. So llama-server is asked once for each loaded model how its
template writes a few small chats, and only what it does not accept is rewritten: system messages are joined
into the first, neighbours of one role into one, calls and results become text, and schemas of arguments get a
plain type or none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.gateway.dialects import chat
from meshd.gateway.dialects.fields import object_of, objects_of, text_of
from meshd.gateway.failure import Failure, HttpRefusal

_FIRST, _SECOND, _THIRD = "meshd-first", "meshd-second", "meshd-third"
_TOOL, _ARGUMENT, _RESULT = "meshd_tool", "meshd-argument-{}", "meshd-result-{}"
_CALL, _OTHER_CALL = "meshdcal1", "meshdcal2"  # of nine letters, as Mistral's templates demand
_LONG_ID = "call_0123456789abcdef"  # as most clients send them
_NO_RESULT = "There is no result: the call was interrupted."
_SYSTEM = ("system", "developer")
_MOST_NAMES = 8  # of tools, in an error


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """The abilities of a template: what it accepts and writes into the prompt."""

    late_systems: bool = True
    neighbours: bool = True  # two messages of one role in a row
    tools: bool = True
    calls: bool = True
    results: bool = True
    user_after_result: bool = True
    parallel_calls: bool = True  # several in one message
    any_ids: bool = True  # of calls; Mistral's templates demand nine letters or digits
    # in the schemas of tools' arguments
    type_lists: bool = True  # `"type": ["integer", "null"]`
    untyped: bool = True  # schemas without `type`, such as unions
    arrays: bool = True


def _user(text: str) -> chat.Message:
    return {"role": "user", "content": text}


def _called(*ids: str) -> list[chat.Message]:
    """Return calls with these ids in one message, and their results."""
    calls: list[dict[str, object]] = []
    results: list[chat.Message] = []
    for number, id in enumerate(ids):
        function = {"name": _TOOL, "arguments": json.dumps({"path": _ARGUMENT.format(number)})}
        calls.append({"id": id, "type": "function", "function": function})
        content = _RESULT.format(number)
        results.append({"role": "tool", "tool_call_id": id, "name": _TOOL, "content": content})
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


def _tool_with(path: Mapping[str, object]) -> list[dict[str, object]]:
    """Return a list of one tool, whose only argument has this schema."""
    properties = {"path": {**path, "description": "a path"}}
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return [chat.function_tool(_TOOL, "a tool", schema)]


def template_questions() -> list[bytes]:
    """Return the bodies for `/apply-template`; `traits_of` takes their answers in this order."""
    tools = _tool_with({"type": "string"})
    system: chat.Message = {"role": "system", "content": _FIRST}
    late = {**system, "content": _SECOND}
    first, second = _user(_FIRST), _user(_SECOND)
    single, double, long_id = _called(_CALL), _called(_CALL, _OTHER_CALL), _called(_LONG_ID)
    asked: list[tuple[list[chat.Message], list[dict[str, object]] | None]] = [
        ([first], None),
        ([system, _user("-"), {"role": "assistant", "content": "-"}, late, _user(_THIRD)], None),
        ([first, second], None),
        ([first], tools),
        ([first, *single], tools),
        ([first, *single, second], tools),
        ([first, *double], tools),
        ([first, *long_id], tools),
        ([first], _tool_with({"type": ["integer", "null"]})),
        ([first], _tool_with({"anyOf": [{"type": "string"}]})),
        ([first], _tool_with({"type": "array", "items": {"type": "string"}})),
    ]
    bodies = ({"messages": sent} | ({"tools": offered} if offered else {}) for sent, offered in asked)
    return [json.dumps(body).encode() for body in bodies]


def traits_of(prompts: Sequence[str]) -> TemplateTraits:
    """Derive the traits from the answers to the questions; a refused question has an empty answer."""
    plain, systems, neighbours, tools, called, after, parallel, long_id, *schemas = prompts
    if _FIRST not in plain:
        # nobody could be asked: one system message every template takes
        return TemplateTraits(late_systems=False)
    argument, result = _ARGUMENT.format(0), _RESULT.format(0)
    type_lists, untyped, arrays = (_TOOL in prompt or _TOOL not in tools for prompt in schemas)
    return TemplateTraits(
        late_systems=all(mark in systems for mark in (_FIRST, _SECOND, _THIRD)),
        neighbours=_FIRST in neighbours and _SECOND in neighbours,
        tools=_TOOL in tools,
        calls=argument in called,
        results=result in called,
        user_after_result=result in after and _SECOND in after,
        parallel_calls=all(mark.format(1) in parallel for mark in (_ARGUMENT, _RESULT)),
        any_ids=result in long_id or result not in called,
        type_lists=type_lists,
        untyped=untyped,
        arrays=arrays,
    )


def fitted(fields: Mapping[str, object], traits: TemplateTraits) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the request in a form that this template accepts, and notes of what was omitted.

    Raises HttpRefusal if a tool must be called and none can be offered.
    """
    messages = _paired([dict(message) for message in objects_of(fields.get("messages"))], traits)
    notes: tuple[str, ...] = ()
    if fields.get("tools") and not (traits.tools or traits.calls):
        notes = (_without_tools(fields),)
    elif fields.get("tools") and not traits.tools:
        messages = [_told_tools(fields), *messages]
    if not traits.late_systems:
        messages = _one_system(messages)
    if not traits.parallel_calls and traits.calls and traits.results:
        messages = _one_call_each(messages)
    if not traits.calls or not traits.results:
        messages = _told_calls(messages, traits)
    if not traits.user_after_result and traits.results:
        messages = _user_into_result(messages)
    if not traits.neighbours:
        messages = _alternating(messages)
    fit = {**fields, "messages": messages}
    if not (traits.type_lists and traits.untyped and traits.arrays) and fields.get("tools"):
        fit["tools"] = [_tool_for(tool, traits) for tool in objects_of(fields.get("tools"))]
    return fit, notes


def _tool_for(tool: Mapping[str, object], traits: TemplateTraits) -> dict[str, object]:
    function = object_of(tool, "function")
    if not isinstance(schema := function.get("parameters"), dict):
        return dict(tool)
    return {**tool, "function": {**function, "parameters": _inner_schemas(schema, traits)}}


def _inner_schemas(schema: Mapping[str, object], traits: TemplateTraits) -> dict[str, object]:
    """Return a schema whose inner schemas are fitted to the template."""
    made = dict(schema)
    if isinstance(named := schema.get("properties"), dict):
        made["properties"] = {name: _schema_for(inner, traits) for name, inner in named.items()}
    for name in ("items", "additionalProperties"):
        if name in schema:
            made[name] = _schema_for(schema[name], traits)
    return made


def _schema_for(schema: object, traits: TemplateTraits) -> object:
    """Wrap a schema that the template cannot read as the only choice of one that it can.

    llama.cpp makes its grammar from `anyOf` and ignores `type` beside it (common/json-schema.cpp), so the
    wrapped schema is still enforced.
    """
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    fits = {
        isinstance(kind, list): traits.type_lists,
        kind is None: traits.untyped,
        kind == "array": traits.arrays,
    }.get(True, True)
    if fits:
        return _inner_schemas(schema, traits)
    made: dict[str, object] = {"anyOf": [schema]}
    if not traits.untyped:
        made["type"] = _plain_type(schema, traits)
    if "description" in schema:
        made["description"] = schema["description"]
    return made


def _plain_type(schema: Mapping[str, object], traits: TemplateTraits) -> str:
    """Return the first type of this schema other than null; `string` if it has none."""
    kind = schema.get("type")
    choices = next((schema[name] for name in ("anyOf", "oneOf") if name in schema), None)
    inner = [choice.get("type") for choice in objects_of(choices)]
    for type_name in [*(kind if isinstance(kind, list) else [kind]), *inner]:
        if isinstance(type_name, str) and type_name != "null" and (type_name != "array" or traits.arrays):
            return type_name
    return "string"


def _told_tools(fields: Mapping[str, object]) -> chat.Message:
    """Return a message that lists the tools, for a template with a form for calls but none for tools."""
    functions = [tool.get("function") for tool in objects_of(fields.get("tools"))]
    lines = ["You can call these functions:", *map(chat.dumped, functions)]
    return {"role": "system", "content": "\n".join(lines)}


def _without_tools(fields: Mapping[str, object]) -> str:
    names = [chat.name_of_tool(tool) for tool in objects_of(fields.get("tools"))]
    shown = ", ".join(f"`{name[:60]}`" for name in names[:_MOST_NAMES])
    if fields.get("tool_choice") == "required":
        message = f"the chat template of this model offers no tools, so none can be required: {shown}"
        raise HttpRefusal(Failure(400, message, code="tools_not_offered", param="tool_choice"))
    return f"tools {shown} (the model's chat template offers none)"


def _paired(messages: list[chat.Message], traits: TemplateTraits) -> list[chat.Message]:
    """Give each call a result and each result a call, and begin with a user if there is none.

    Histories that were cut off or interrupted lack one or the other, and templates refuse or skip the rest.
    """
    made: list[chat.Message] = []
    open_calls: dict[str, str] = {}  # without a result so far: the client's ids, and those for the template
    count = 0
    for message in messages:
        # a result: match it with its call, or make it a user's message
        role = message.get("role")
        if role == "tool":
            if (known := open_calls.pop(text_of(message, "tool_call_id"), None)) is not None:
                made.append({**message, "tool_call_id": known})
            else:
                content = chat.joined("Result of a tool:", message.get("content"))
                made.append({"role": "user", "content": content})
            continue
        # another message: complete the calls before it, and open its own
        if role not in _SYSTEM:
            made += [chat.result_message(known, _NO_RESULT) for known in open_calls.values()]
            open_calls.clear()
        calls = objects_of(message.get("tool_calls"))
        for call in calls:
            count += 1
            id = text_of(call, "id")
            open_calls[id] = id if traits.any_ids else f"call{count:05d}"
        if calls:
            named = [{**call, "id": open_calls[text_of(call, "id")]} for call in calls]
            message = {**message, "tool_calls": named}
        made.append(message)
    if all(message.get("role") in _SYSTEM for message in made):
        made.append(_user("-"))
    return made


def _one_system(messages: list[chat.Message]) -> list[chat.Message]:
    systems = [message for message in messages if message.get("role") in _SYSTEM]
    if not systems:
        return messages
    content = chat.joined(*(message.get("content") for message in systems))
    others = [message for message in messages if message.get("role") not in _SYSTEM]
    return [{"role": "system", "content": content}, *others]


def _one_call_each(messages: list[chat.Message]) -> list[chat.Message]:
    """Split a message with several calls into one message for each call, followed by its result."""
    made: list[chat.Message] = []
    results = {text_of(of, "tool_call_id"): of for of in messages if of.get("role") == "tool"}
    answered: set[str] = set()
    for message in messages:
        calls = objects_of(message.get("tool_calls"))
        if len(calls) < 2:
            if message.get("role") != "tool" or text_of(message, "tool_call_id") not in answered:
                made.append(message)
            continue
        for at, call in enumerate(calls):
            kept = message if not at else {"role": "assistant", "content": ""}
            made.append({**kept, "tool_calls": [call]})
            # once, also where several calls have one id
            if (result := results.pop(id := text_of(call, "id"), None)) is not None:
                made.append(result)
                answered.add(id)
    return made


def _told_calls(messages: list[chat.Message], traits: TemplateTraits) -> list[chat.Message]:
    """Write calls and results as text, for a template that has no form for them."""
    made: list[chat.Message] = []
    names: dict[str, str] = {}
    for message in messages:
        calls = objects_of(message.get("tool_calls"))
        names |= {text_of(call, "id"): chat.name_of_tool(call) for call in calls}
        if calls and not traits.calls:
            text = "\n".join(_told_call(call) for call in calls)
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            message = {**kept, "content": chat.joined(message.get("content"), text)}
        if message.get("role") == "tool" and not traits.results:
            name = names.get(text_of(message, "tool_call_id")) or text_of(message, "name")
            head = f"Result of `{name}`:" if name else "Result:"
            message = {"role": "user", "content": chat.joined(head, message.get("content"))}
        made.append(message)
    return made


def _told_call(call: Mapping[str, object]) -> str:
    of = object_of(call, "function")
    arguments = of.get("arguments")
    text = arguments if isinstance(arguments, str) else chat.dumped(arguments)
    return f'{{"name": {chat.dumped(of.get("name"))}, "arguments": {text}}}'


def _user_into_result(messages: list[chat.Message]) -> list[chat.Message]:
    """Join a user's message that is next to a tool's result into the result."""
    made: list[chat.Message] = []
    for message in messages:
        if made and message.get("role") == "user" and made[-1].get("role") == "tool":
            chat.grow(made[-1], "content", message.get("content"))
        else:
            made.append(dict(message))
    return chat.grown(made)


def _alternating(messages: list[chat.Message]) -> list[chat.Message]:
    """Make user and assistant alternate, the user first."""
    made: list[chat.Message] = []
    for message in messages:
        last, role = (made[-1] if made else {}), message.get("role")
        if role == "assistant" and last.get("role") in (None, *_SYSTEM):
            made.append(_user("-"))
            last = made[-1]
        if role == last.get("role") and role in ("user", "assistant") and not last.get("tool_calls"):
            chat.grow(last, "content", message.get("content"))
            last.update((name, value) for name, value in message.items() if name != "content")
        else:
            made.append(dict(message))
    return chat.grown(made)
