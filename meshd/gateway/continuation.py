"""How a request is put so that llama-server goes on behind the text that a client has. Pure.

The prompt becomes the prompt with that text behind it: as tokens where the answer told them, else as text; of
a chat it is the beginning of the assistant's message, with calls of tools as the template writes them
(begun_calls.py). A grammar is moved on by the same text: llama-server feeds it what it calls the generation
prompt. Fewer tokens remain to be generated, and the numbers at the end count all of them (rest_events.py).
"""

from collections.abc import Mapping

from meshd.gateway.begun_calls import CallTemplate, messages_as_a_chat, responses_as_a_chat
from meshd.gateway.json_fields import objects_of
from meshd.gateway.sent_text import Dialect, SentText

# What they ask for depends on more than the text so far, or is what the rest is asked for with.
_STATE = ("echo", "suffix", "generation_prompt", "grammar_type", "continue_final_message")
# These say which text may come next, so what was sent moves them on.
_FORMS = ("grammar", "json_schema", "response_format")
# A chat's own grammar is fed nothing: what comes before the answer would not fit it.
_CONTINUED_FORMS: Mapping[Dialect, frozenset[str]] = {
    Dialect.NATIVE: frozenset({"grammar", "json_schema"}),
    Dialect.COMPLETION: frozenset({"grammar", "json_schema"}),
    Dialect.CHAT: frozenset({"json_schema", "response_format"}),
    Dialect.RESPONSES: frozenset({"json_schema", "response_format"}),
    Dialect.ANTHROPIC: frozenset(),
}
_SEVERAL = ("n", "n_cmpl", "best_of")
_LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")


def continued(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    """The request for the rest; None where it cannot be put so."""
    if not _can_go_on(asked, sent) or (sent.calls and sent.written is None):
        return None
    request = _with_text(asked, sent)
    return request if request is not None and _shorten(request, sent.count) else None


def _can_go_on(asked: Mapping[str, object], sent: SentText) -> bool:
    if not sent.is_text or sent.is_over or not (sent.text or sent.reasoning or sent.calls):
        return False
    if any(asked.get(name) for name in _STATE) or any(
        asked.get(name, 1) not in (1, None) for name in _SEVERAL
    ):
        return False
    forms = {name for name in _FORMS if asked.get(name)}
    return forms <= _CONTINUED_FORMS[sent.dialect]


def unwritten_calls(asked: Mapping[str, object], sent: SentText) -> CallTemplate | None:
    """What is to be known of the template before the rest can be asked for; None: nothing."""
    if not sent.calls or not _can_go_on(asked, sent):
        return None
    if sent.dialect is Dialect.ANTHROPIC:
        asked = messages_as_a_chat(asked)
    elif sent.dialect is Dialect.RESPONSES:
        asked = responses_as_a_chat(asked)
    return CallTemplate(asked, sent.calls, after_text=bool(sent.text))


def is_sampled(asked: Mapping[str, object]) -> bool:
    """Whether the seed decides."""
    return asked.get("temperature") != 0


def _with_text(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    if sent.dialect in (Dialect.NATIVE, Dialect.COMPLETION):
        return _with_prompt(asked, sent)
    if sent.dialect is Dialect.RESPONSES:
        items = _with_items(asked.get("input"), sent)
        request = None if items is None else {**asked, "input": items}
    else:
        messages = objects_of(asked.get("messages"))
        if not messages or messages[-1].get("role") == "assistant":
            return None
        request = {**asked, "messages": [*messages, _begun_message(sent)]}
    if request is None:
        return None
    if sent.dialect is not Dialect.ANTHROPIC:  # there it follows from the last message
        request["add_generation_prompt"] = False
        has_spoken = sent.has_text or sent.calls
        request["continue_final_message"] = "content" if has_spoken else "reasoning_content"
        if sent.calls:
            # what the parser makes of the beginning may be less than was sent: all is told, and compared
            request["echo"] = True
    if sent.calls and _is_free(asked):  # else the grammar would wait for the beginning of a call
        request["tool_choice"] = {"type": "any"} if sent.dialect is Dialect.ANTHROPIC else "required"
    return request


def _with_prompt(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    if not _is_free(asked):
        return None
    request = dict(asked)
    prompt = asked.get("prompt")
    parts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(parts, list) or not all(isinstance(one, str | int) for one in parts):
        return None
    if sum(isinstance(one, str) for one in parts) > 1:
        return None  # several prompts
    has_form = any(asked.get(name) for name in _FORMS)
    if has_form:
        request["generation_prompt"] = sent.text
        request |= {"grammar_type": "tool_calls"} if asked.get("grammar") else {}
    # a grammar is moved on by text, and the last of the tokens may be half a letter
    if sent.tokens and len(sent.tokens) == sent.count and not has_form:
        request["prompt"] = [*parts, *sent.tokens]
    else:
        request["prompt"] = prompt + sent.text if isinstance(prompt, str) else [*parts, sent.text]
    return request


def _begun_message(sent: SentText) -> dict[str, object]:
    content = sent.text + (sent.written or "")
    begun: dict[str, object] = {"role": "assistant", "content": content}
    if not sent.reasoning:
        return begun
    if sent.dialect is Dialect.CHAT:
        return {**begun, "reasoning_content": sent.reasoning}
    said = [{"type": "text", "text": content}] if content or sent.has_text else []
    return {**begun, "content": [{"type": "thinking", "thinking": sent.reasoning, "signature": ""}, *said]}


def _with_items(asked: object, sent: SentText) -> list[dict[str, object]] | None:
    """The input of the Responses API. llama-server makes one message of these two items, in this order."""
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else objects_of(asked)
    if not items or items[-1].get("role") == "assistant":
        return None
    if items[-1].get("type") in ("function_call", "reasoning"):
        return None
    begun: list[dict[str, object]] = []
    if content := sent.text + (sent.written or ""):
        part = {"type": "output_text", "text": content}
        begun.append({"type": "message", "role": "assistant", "content": [part]})
    if sent.reasoning:
        thought = {"type": "reasoning_text", "text": sent.reasoning}
        begun.append({"type": "reasoning", "summary": [], "content": [thought]})
    return [*items, *begun]


def _is_free(asked: Mapping[str, object]) -> bool:
    """To call a tool or not."""
    choice = asked.get("tool_choice")
    return (choice.get("type") if isinstance(choice, dict) else choice) in (None, "auto", "none")


def _shorten(request: dict[str, object], by: int) -> bool:
    """Whether any tokens remain."""
    for name in _LENGTHS:
        most = request.get(name)
        if isinstance(most, int) and most > 0:
            if most <= by:
                return False
            request[name] = most - by
    return True
