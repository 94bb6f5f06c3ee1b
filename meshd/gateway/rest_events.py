"""Events of a run that goes on behind what a client has, as the client of the whole answer sees them. Pure.

Such a run starts a new answer, so it announces a role, a message and a block again. In `/v1/messages`, and
wherever there are calls of tools, llama-server also repeats the text before the rest. The client has it.
"""

from collections.abc import Mapping

from meshd.gateway.echo import Echo, OtherAnswer
from meshd.gateway.json_fields import is_number, objects_of, text_of
from meshd.gateway.sent_text import Dialect, SentText


def as_the_rest(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    """An event of a run that went on behind `before` tokens; None: the client has had it.

    Raises OtherAnswer.
    """
    match sent.dialect:
        case Dialect.NATIVE:
            return _counted(event, {"tokens_predicted": before, "tokens_evaluated": -before})
        case Dialect.ANTHROPIC:
            return _of_messages(event, sent, before)
        case Dialect.RESPONSES:
            return _of_responses(event, sent.echo, before)
        case _:
            return _of_choices(event, sent.echo, before)


def _of_choices(event: dict[str, object], echo: Echo, before: int) -> dict[str, object] | None:
    for choice in objects_of(event.get("choices")):
        delta = choice.get("delta")
        if isinstance(delta, dict) and "role" in delta and not delta.get("content"):
            return None
        if isinstance(delta, dict) and delta and echo.calls:
            fresh = echo.fresh(delta)
            if not fresh and choice.get("finish_reason") is None:
                return None
            event = {**event, "choices": [{**choice, "delta": fresh}]}
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return event
    return {**event, "usage": _counted(usage, {"completion_tokens": before, "prompt_tokens": -before})}


def _of_messages(event: dict[str, object], sent: SentText, before: int) -> dict[str, object] | None:
    echo = sent.echo
    usage, delta = event.get("usage"), event.get("delta")
    if event.get("type") == "message_start":
        return None
    if event.get("type") == "content_block_start":
        return event if _is_new_block(event, echo) else None
    if event.get("type") == "message_delta" and echo.has_text and not echo.text_came:
        raise OtherAnswer("it has no text, of which the client has the beginning")
    if isinstance(usage, dict):
        return {**event, "usage": _counted(usage, {"output_tokens": before})}
    if not isinstance(delta, dict):
        return event
    if "partial_json" in delta:
        said = echo.fresh_arguments(sent.call_of(event), text_of(delta, "partial_json"))
        return {**event, "delta": {**delta, "partial_json": said}} if said else None
    for name, left in (("text", echo.text), ("thinking", echo.reasoning)):
        if added := text_of(delta, name):
            said = left.if_it_comes(added)
            return {**event, "delta": {**delta, name: said}} if said else None
    return event


def _is_new_block(event: dict[str, object], echo: Echo) -> bool:
    """Raises OtherAnswer."""
    known = ["thinking"] * echo.has_reasoning + ["text"] * echo.has_text + ["tool_use"] * echo.calls
    index, block = event.get("index"), event.get("content_block")
    if not is_number(index) or index >= len(known):
        return True
    what = block.get("type") if isinstance(block, dict) else None
    if what != known[index]:
        raise OtherAnswer("its blocks are other ones")
    echo.text_came |= what == "text"
    return False


def _of_responses(event: dict[str, object], echo: Echo, before: int) -> dict[str, object] | None:
    kind, item = text_of(event, "type").removeprefix("response."), event.get("item")
    response = event.get("response")
    known = {"message": echo.has_text, "reasoning": echo.has_reasoning}
    if kind in ("created", "in_progress") or (kind == "content_part.added" and echo.has_part):
        return None
    if kind == "output_item.added" and isinstance(item, dict):
        what = text_of(item, "type")
        has_begun = echo.begins_call() < echo.calls if what == "function_call" else known.get(what)
        return None if has_begun else event
    if kind.endswith(".delta"):
        return _fresh_delta(event, kind, echo) if echo.calls else event
    if not isinstance(response, dict) or not isinstance(usage := response.get("usage"), dict):
        return event
    counted = _counted(usage, {"output_tokens": before, "input_tokens": -before})
    return {**event, "response": {**response, "usage": counted}}


def _fresh_delta(event: dict[str, object], kind: str, echo: Echo) -> dict[str, object] | None:
    added = text_of(event, "delta")
    match kind:
        case "output_text.delta":
            said = echo.text.without(added)
        case "reasoning_text.delta":
            said = echo.reasoning.without(added)
        case "function_call_arguments.delta":
            said = echo.fresh_arguments(echo.call, added)
        case _:
            return event
    return {**event, "delta": said} if said else None


def _counted(values: Mapping[str, object], more: Mapping[str, int]) -> dict[str, object]:
    found = dict(values)
    for name, by in more.items():
        value = found.get(name)
        if is_number(value):
            found[name] = value + by
    return found
