"""Ask llama-server to continue the text that a client already has. Pure.

The text is appended to the prompt: as tokens if the answer had them, else as text. In a chat it becomes the
beginning of the assistant's message. A grammar advances by the same text, which llama-server calls the
generation prompt. The limit of tokens is reduced, and the figures at the end count all tokens (events.py).

Calls of tools are written as the model wrote them. A client gets only name and arguments, but to continue
within the arguments llama-server needs the text around them as well. So its `/apply-template` is shown a call
with arguments that are easy to find, which are then replaced by those that the client has: all at once if the
template writes them as JSON. Other templates write each argument separately, usually in a tag, strings
without quotation marks and other values as JSON. They are shown a mark instead of each value, twice: with the
real arguments, and with one more at the end. If the last value is complete, the text that both have after it
is written as well, such as a closing tag.
"""

import json
import re
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO
from itertools import takewhile
from typing import NamedTuple, TypeVar

from meshd.base.errors import MeshdError
from meshd.gateway.dialects.fields import is_number, object_of, objects_of, text_of

# possessive, else each letter would be remembered, to go back to
_WHOLE_LETTERS = re.compile(r'(?:[^\\"]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_NUMBER = re.compile(r"[-+.0-9eE]+")  # as far as it came: `0.` is none yet
_SPACE = re.compile(r"\s*")
_decoder = json.JSONDecoder(strict=False)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BegunArgument:
    """An argument of a call. `value`: its JSON; that of the last argument may be cut off."""

    name: str
    value: str

    @property
    def is_text(self) -> bool:
        return self.value.startswith('"')

    @property
    def is_whole(self) -> bool:
        try:
            return _decoder.raw_decode(self.value)[1] == len(self.value)
        except ValueError:
            return False

    @property
    def text(self) -> str:
        """Return a string value decoded, as far as it came."""
        return _letters(self.value[1:])


@dataclass(slots=True)
class BegunArguments:
    """The arguments of a call so far. `next_name`: the beginning of the next argument's name, if it came.

    `is_closed`: the last value is complete.
    """

    arguments: list[BegunArgument] = field(default_factory=list)
    next_name: str | None = None
    is_closed: bool = True


def begun_arguments(text: str) -> BegunArguments | None:
    """Read the beginning of a JSON object; None if `text` is not one."""
    found, at = BegunArguments(), _behind_space(text, 0)
    if at == len(text):
        return found
    if text[at] != "{":
        return None
    at = _behind_space(text, at + 1)
    while at < len(text) and text[at] != "}":
        try:
            read = _read_one(text, at, found)
        except (ValueError, RecursionError):
            return None
        at = _behind_space(text, read)
        if at < len(text) and text[at] == ",":
            at = _behind_space(text, at + 1)
            found.is_closed, found.next_name = True, "" if at == len(text) else None
        elif at < len(text) and text[at] == "}":
            found.is_closed = True
        elif at < len(text):
            return None
    return found


def _read_one(text: str, at: int, found: BegunArguments) -> int:
    """Read one argument; return where it ends. Raises ValueError."""
    if text[at] != '"':
        raise ValueError("a name begins with a quotation mark")
    try:
        name, at = _decoder.raw_decode(text, at)
    except ValueError:
        found.next_name = _letters(text[at + 1 :])
        return len(text)
    at = _behind_space(text, at)
    if at < len(text):
        if text[at] != ":":
            raise ValueError("a name is followed by a colon")
        at = _behind_space(text, at + 1)
    if at == len(text):  # how its value is written can depend on what it is
        found.next_name, found.is_closed = name, True
        return at
    end = _end_of_value(text, at)
    argument = BegunArgument(name, text[at:end])
    found.arguments.append(argument)
    found.is_closed = argument.is_text and argument.is_whole  # a number can have more digits
    return end


def _end_of_value(text: str, at: int) -> int:
    if (number := _NUMBER.match(text, at)) is not None:
        return number.end()
    try:
        return _decoder.raw_decode(text, at)[1]
    except ValueError:
        return len(text)


def _letters(escaped: str) -> str:
    """Decode a JSON string without its opening quotation mark, up to an incomplete escape sequence."""
    whole = _WHOLE_LETTERS.match(escaped)
    found: str = json.loads(f'"{whole[0] if whole is not None else ""}"', strict=False)
    return found[:-1] if "\ud800" <= found[-1:] <= "\udbff" else found  # of two that are one letter


def _behind_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


_NEXT_NAME = "meshd-next"
# an argument that is no text is shown as a number: a template may write texts in another way
_FIRST_NUMBER = 7_303_014_000
_TO_A_TAGS_END = re.compile(r"(?s).*[>\]}\s]")


def tagged_arguments(calls: Sequence[BegunArguments]) -> tuple[list[str], list[str]]:
    """Return the arguments of all calls, as JSON, for two requests to the template."""
    marks = iter(_marks(calls))
    shown = [{argument.name: next(marks) for argument in call.arguments} for call in calls]
    longer = [*shown[:-1], {**shown[-1], _NEXT_NAME: "-"}]
    return [json.dumps(arguments) for arguments in shown], [json.dumps(arguments) for arguments in longer]


def written_tagged(shown: str, longer: str, calls: Sequence[BegunArguments]) -> str | None:
    """Return what the model wrote for these calls; None if that cannot be determined.

    `shown` and `longer`: the two prompts of the template, from where the calls begin.
    """
    arguments = [argument for call in calls for argument in call.arguments]
    parts, at, longer_at = [], 0, 0  # not the rest of the two each time: a peer can send very many arguments
    for argument, mark in zip(arguments, map(str, _marks(calls)), strict=True):
        found, longer_found = shown.find(mark, at), longer.find(mark, longer_at)
        before = shown[at:found]
        if found < 0 or longer_found < 0 or before != longer[longer_at:longer_found]:
            return None
        at, longer_at = found + len(mark), longer_found + len(mark)
        parts.append(before)
        if argument.is_text and before.endswith('"') and shown.startswith('"', at):
            parts.append(argument.value[1:])
            at, longer_at = at + argument.is_whole, longer_at + argument.is_whole
        else:
            parts.append(argument.text if argument.is_text else argument.value)
    last, longer = calls[-1], longer[longer_at:]
    if last.next_name is not None:
        before, name, _ = longer.partition(_NEXT_NAME)
        if not name:
            return None
        parts += [before, last.next_name]
    elif last.is_closed:
        parts.append(_closing(shown[at:], longer))
    return "".join(parts)


def _closing(shown: str, longer: str) -> str:
    """Return the common beginning of both texts, cut after the last tag, bracket or whitespace."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, longer, strict=False)))
    found = _TO_A_TAGS_END.match(shown[:alike])
    return "" if found is None else found[0]


def _marks(calls: Sequence[BegunArguments]) -> Iterator[str | int]:
    arguments = [argument for call in calls for argument in call.arguments]
    for number, argument in enumerate(arguments):
        yield f"meshd-value-{number}." if argument.is_text else _FIRST_NUMBER + number


_CONTENT = "meshd-content"
_ARGUMENTS = "meshd-arguments"


@dataclass(slots=True)
class SentCall:
    """A tool call, as far as the client has it."""

    id: str = ""
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    @property
    def text(self) -> str:
        """Return the arguments so far, as text."""
        return self.arguments.getvalue()


# Another node may answer that serves several models, each with its own template.
_TEMPLATE_FIELDS = ("model", "tools", "chat_template_kwargs", "reasoning_effort", "reasoning_format")

Asking = Generator[bytes, str, T]
"""Yields bodies for `/apply-template`, each of which is answered by the prompt; empty if there is none."""


def resumed(asking: Asking[bytes | None], prompt: str | None) -> tuple[bool, bytes | None]:
    """Give `asking` the prompt that it asked for, if any. Returns whether it is over, and its word."""
    try:
        return False, next(asking) if prompt is None else asking.send(prompt)
    except StopIteration as end:
        return True, end.value


def written_calls(
    asked: Mapping[str, object], calls: Sequence[SentCall], *, after_text: bool
) -> Asking[str | None]:
    """Return what the model wrote for its calls so far; None if that cannot be determined.

    `asked`: the fields of the chat. `after_text`: the client has text before the calls. There is one question
    at a time, because a peer decides how much memory calls and their tools take.
    """
    fields = {name: asked[name] for name in _TEMPLATE_FIELDS if name in asked}
    # what was said before does not matter for how a call is written
    user: dict[str, object] = {"role": "user", "content": "-"}

    def question(arguments: Sequence[str]) -> bytes:
        made = _made(calls, arguments) if arguments else []
        return json.dumps({**fields, "messages": [user, *made]}).encode()

    # 1. A chat before the calls were made.
    before = yield question(())
    if not before:
        return None

    # 2. The calls with arguments that are easy to find, wherever the template writes them as JSON.
    marks = [_marked(number) for number, _ in enumerate(calls)]
    shown = _behind_text((yield question(marks)), before)
    if shown is None:
        return None
    text = _written_as_json(shown.text, calls)
    if text is None:
        # 3. Marks in place of the values: it writes each argument by itself.
        begun = [part for call in calls if (part := begun_arguments(call.text)) is not None]
        if len(begun) < len(calls):
            return None
        tagged = []
        for arguments in tagged_arguments(begun):
            if (found := _behind_text((yield question(arguments)), before)) is None:
                return None
            tagged.append(found)
        text = written_tagged(tagged[0].text, tagged[1].text, begun)

    # where the client has no text, the whitespace that follows it in the template was not written either
    strips = shown.has_content and not after_text
    return text.lstrip() if text is not None and strips else text


def _made(calls: Sequence[SentCall], arguments: Sequence[str]) -> list[dict[str, object]]:
    """Return the message with the calls, and a result of each: what ends with calls would be continued."""
    made: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for call, text in zip(calls, arguments, strict=True):
        function = {"name": call.name, "arguments": text}
        made.append({"id": call.id, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "-"})
    return [{"role": "assistant", "content": _CONTENT, "tool_calls": made}, *results]


class _Behind(NamedTuple):
    text: str  # that follows the text of the message with the calls
    has_content: bool  # the template has written that, which some do not beside calls


def _behind_text(prompt: str, before: str) -> _Behind | None:
    """Find what a prompt has behind the message's text; None if it cannot be found."""
    _, found, behind = prompt.rpartition(_CONTENT)
    if found:
        return _Behind(behind, True)
    return _Behind(prompt[len(before) :], False) if prompt.startswith(before) else None


def _marked(number: int) -> str:
    return json.dumps({f"{_ARGUMENTS}-{number}": 0})


def _written_as_json(behind: str, calls: Sequence[SentCall]) -> str | None:
    parts, at = [], 0
    for number, call in enumerate(calls):
        found = re.compile(rf'\{{\s*"{_ARGUMENTS}-{number}"\s*:\s*0\s*\}}').search(behind, at)
        if found is None:  # this template writes arguments otherwise
            return None
        parts += [behind[at : found.start()], call.text]
        at = found.end()
    return "".join(parts)


class OtherAnswer(MeshdError):
    """A second run of a request made a different answer than the first."""


class _Left:
    """A text that is generated again, and how much of it has come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # so much of it has come: a copy of the rest for each piece would take minutes

    def without(self, added: str) -> str:
        """Return the part of `added` that goes beyond the text. Raises OtherAnswer if it differs."""
        come = added[: len(self._text) - self._at]
        if not self._text.startswith(come, self._at):
            raise OtherAnswer("it begins with other text")
        self._at += len(come)
        return added[len(come) :]


class Echo:
    """The text and calls that a client has when the answer continues, to compare with a repetition."""

    def __init__(self, text: str, reasoning: str, calls: Sequence[SentCall]) -> None:
        self.text = _Left(text)
        self.reasoning = _Left(reasoning)
        self._calls = [_Left(call.text) for call in calls]

    @property
    def calls(self) -> int:
        """Return the number of calls of which the client has a part."""
        return len(self._calls)

    def fresh(self, delta: Mapping[str, object]) -> dict[str, object]:
        """Return what the client lacks of a chat's delta. Raises OtherAnswer."""
        fresh = dict(delta)
        for name, left in (("content", self.text), ("reasoning_content", self.reasoning)):
            if text := text_of(delta, name):
                fresh[name] = left.without(text)
        if isinstance(calls := delta.get("tool_calls"), list):
            fresh["tool_calls"] = [piece for call in calls for piece in self._fresh_call(call)]
        empty = {name for name, value in fresh.items() if not value and value != delta[name]}
        return {name: value for name, value in fresh.items() if name not in empty}

    def _fresh_call(self, call: object) -> list[object]:
        number = call.get("index") if isinstance(call, dict) else None
        if type(number) is not int or not 0 <= number < len(self._calls):
            return [call]
        fresh = self._calls[number].without(text_of(object_of(call, "function"), "arguments"))
        return [{"index": number, "function": {"arguments": fresh}}] if fresh else []


_MOST_KEPT = 4 << 20  # letters and tokens of an answer: 131,072 tokens have about half a million letters
_MOST_CALLS = 64  # of tools, in one answer
_CALL_NAME_LETTERS = 256  # letters of the id and of the name of a call


class SentForm(StrEnum):
    """A form of llama-server's requests and events in which an answer can be continued."""

    NATIVE = "native"
    COMPLETION = "completion"
    CHAT = "chat"


SENT_FORMS: Mapping[str, SentForm] = {
    "/completion": SentForm.NATIVE,
    "/completions": SentForm.NATIVE,
    "/v1/completions": SentForm.COMPLETION,
    "/v1/chat/completions": SentForm.CHAT,
}


@dataclass(slots=True)
class SentText:
    """The text, reasoning and tool calls that were sent to a client.

    `is_text` is False if the answer cannot be kept so: for other content, several answers, or too much text.
    """

    form: SentForm
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    count: int = 0  # of tokens, or of pieces where it is not told
    is_text: bool = True
    is_over: bool = False
    calls: list[SentCall] = field(default_factory=list)
    # not lists: of short pieces those would hold many times their letters
    _written: StringIO = field(default_factory=StringIO)
    _thought: StringIO = field(default_factory=StringIO)
    _kept: int = 0
    # of a run that continues what the client has
    echo: Echo = field(default_factory=lambda: Echo("", "", []))

    @property
    def text(self) -> str:
        return self._written.getvalue()

    @property
    def reasoning(self) -> str:
        return self._thought.getvalue()

    def see(self, event: Mapping[str, object]) -> None:
        """Add one event, by its JSON."""
        if not self.is_text:
            return
        if self.form is SentForm.NATIVE:
            self._native(event)
        else:
            self._choices(event)
        if self._kept > _MOST_KEPT:
            self.is_text = False
        if not self.is_text:
            self._written, self._thought, self.tokens, self.calls = StringIO(), StringIO(), array("i"), []

    def goes_on(self) -> None:
        """Remember the text sent so far, to compare with what the next run repeats."""
        self.echo = Echo(self.text, self.reasoning, self.calls)

    def _add(self, text: str, thought: str = "") -> None:
        """Add text. A model writes none after a call, and reasons before it writes."""
        has_more = bool(text or thought)
        self.is_text &= not (self.calls and has_more)
        self._kept += self._written.write(text) + self._thought.write(thought)
        self.count += has_more

    def _native(self, event: Mapping[str, object]) -> None:
        self.is_over |= event.get("stop") is True
        self.is_text &= event.get("index", 0) == 0
        tokens, count = event.get("tokens"), event.get("tokens_predicted")
        if isinstance(tokens, list):
            self.tokens.extend(token for token in tokens if is_number(token))
            self._kept += len(tokens)
        self._add(text_of(event, "content"))
        if is_number(count):
            self.count = count

    def _choices(self, event: Mapping[str, object]) -> None:
        for choice in objects_of(event.get("choices")):
            self.is_text &= choice.get("index", 0) == 0
            self.is_over |= choice.get("finish_reason") is not None
            of = object_of(choice, "delta") or choice
            self._add(text_of(of, "content") + text_of(of, "text"), text_of(of, "reasoning_content"))
            for call in objects_of(of.get("tool_calls")):
                self._called(call.get("index"), text_of(call, "id"), call.get("function"))

    def _called(self, number: object, id: str, function: object) -> None:
        """Add more of a call."""
        most = min(len(self.calls), _MOST_CALLS - 1)
        if not is_number(number) or not isinstance(function, dict) or number > most:
            self.is_text = False
            return
        if number == len(self.calls):
            self.calls.append(SentCall())
        self.is_text &= number == len(self.calls) - 1
        begun = self.calls[-1]
        begun.id, begun.name = begun.id or id, begun.name or text_of(function, "name")
        self.is_text &= max(len(begun.id), len(begun.name)) <= _CALL_NAME_LETTERS
        self._kept += begun.arguments.write(text_of(function, "arguments"))
        self.count += 1


# What they ask for depends on more than the text so far, or is what the rest is asked for with.
_STATE = ("echo", "suffix", "generation_prompt", "grammar_type", "continue_final_message")
# These say which text may come next, so what was sent moves them on.
_FORMS = ("grammar", "json_schema", "response_format")
# A chat's own grammar is fed nothing: what comes before the answer would not fit it.
_CONTINUED_FORMS: Mapping[SentForm, frozenset[str]] = {
    SentForm.NATIVE: frozenset({"grammar", "json_schema"}),
    SentForm.COMPLETION: frozenset({"grammar", "json_schema"}),
    SentForm.CHAT: frozenset({"json_schema", "response_format"}),
}
_SEVERAL = ("n", "n_cmpl", "best_of")
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")


def continued(asked: Mapping[str, object], sent: SentText) -> Asking[dict[str, object] | None]:
    """Return the request for the rest of the answer; None if it cannot be continued."""
    if not _can_go_on(asked, sent):
        return None
    written: str | None = ""
    if sent.calls:
        written = yield from written_calls(asked, sent.calls, after_text=bool(sent.text))
    if written is None:
        return None
    request = _with_text(asked, sent, written) if sent.form is SentForm.CHAT else _with_prompt(asked, sent)
    return request if request is not None and _shorten(request, sent.count) else None


def _can_go_on(asked: Mapping[str, object], sent: SentText) -> bool:
    if not sent.is_text or sent.is_over or not (sent.text or sent.reasoning or sent.calls):
        return False
    has_state = any(asked.get(name) for name in _STATE)
    is_one = all(asked.get(name, 1) in (1, None) for name in _SEVERAL)
    forms = {name for name in _FORMS if asked.get(name)}
    return is_one and not has_state and forms <= _CONTINUED_FORMS[sent.form]


def _with_text(asked: Mapping[str, object], sent: SentText, written: str) -> dict[str, object] | None:
    messages = objects_of(asked.get("messages"))
    if not messages or messages[-1].get("role") == "assistant":
        return None
    begun: dict[str, object] = {"role": "assistant", "content": sent.text + written}
    if sent.reasoning:
        begun["reasoning_content"] = sent.reasoning
    request: dict[str, object] = {**asked, "messages": [*messages, begun], "add_generation_prompt": False}
    request["continue_final_message"] = "content" if sent.text or sent.calls else "reasoning_content"
    if sent.calls:
        # what the parser makes of the beginning may be less than was sent: all is told, and compared
        request["echo"] = True
        if _is_free(asked):  # else the grammar would wait for the beginning of a call
            request["tool_choice"] = "required"
    return request


def _with_prompt(asked: Mapping[str, object], sent: SentText) -> dict[str, object] | None:
    if not _is_free(asked):
        return None
    request = dict(asked)
    prompt = asked.get("prompt")
    parts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(parts, list) or not all(isinstance(part, str | int) for part in parts):
        return None
    if sum(isinstance(part, str) for part in parts) > 1:
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


def _is_free(asked: Mapping[str, object]) -> bool:
    """Return True if the model may choose whether to call a tool."""
    choice = asked.get("tool_choice")
    return (choice.get("type") if isinstance(choice, dict) else choice) in (None, "auto", "none")


def _shorten(request: dict[str, object], by: int) -> bool:
    """Reduce the limit of tokens by those sent; return False if none remain."""
    for name in _LENGTHS:
        most = request.get(name)
        if isinstance(most, int) and most > 0:
            if most <= by:
                return False
            request[name] = most - by
    return True
