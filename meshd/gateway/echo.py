"""A run that begins with what the client has: that is compared, and left out. Pure."""

from collections.abc import Mapping, Sequence

from meshd.base.errors import MeshdError
from meshd.gateway.begun_calls import SentCall


class OtherAnswer(MeshdError):
    """A second run of a request made something else than the first."""


class _Left:
    """Of text that comes once more."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # so much of it has come: a copy of the rest for each piece would take minutes

    def without(self, added: str) -> str:
        """What `added` has behind it. Raises OtherAnswer."""
        come = added[: len(self._text) - self._at]
        if not self._text.startswith(come, self._at):
            raise OtherAnswer("it begins with other text")
        self._at += len(come)
        return added[len(come) :]

    def if_it_comes(self, added: str) -> str:
        """The same, but none of it need come: from where it differs all is new."""
        if self._text.startswith(added, self._at):
            self._at += len(added)
            return ""
        rest, self._at = self._text[self._at :], len(self._text)
        return added.removeprefix(rest)


class Echo:
    """Of what a client has when the rest is asked for."""

    def __init__(self, text: str, reasoning: str, calls: Sequence[SentCall]) -> None:
        self.has_text = bool(text)  # or it has begun
        self.has_part = self.has_text
        self.text_came = False  # once more
        self.has_reasoning = bool(reasoning)
        self.text = _Left(text)
        self.reasoning = _Left(reasoning)
        self._calls = [_Left(call.text) for call in calls]
        self._begun = 0

    @property
    def calls(self) -> int:
        """How many the client has begun to see."""
        return len(self._calls)

    def begins_call(self) -> int:
        """The number of the call that begins now."""
        self._begun += 1
        return self._begun - 1

    @property
    def call(self) -> int:
        """The number of the one that began last."""
        return self._begun - 1

    def fresh(self, delta: Mapping[str, object]) -> dict[str, object]:
        """Of a chat's delta what the client lacks. Raises OtherAnswer."""
        fresh = dict(delta)
        for name, left in (("content", self.text), ("reasoning_content", self.reasoning)):
            if isinstance(said := delta.get(name), str) and said:
                fresh[name] = left.without(said)
                if not fresh[name]:
                    del fresh[name]
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            fresh["tool_calls"] = [one for call in calls for one in self._fresh_call(call)]
            if not fresh["tool_calls"]:
                del fresh["tool_calls"]
        return fresh

    def fresh_arguments(self, number: int, added: str) -> str:
        """Of these arguments of a call. Raises OtherAnswer."""
        return self._calls[number].without(added) if 0 <= number < len(self._calls) else added

    def _fresh_call(self, call: object) -> list[object]:
        number = call.get("index") if isinstance(call, dict) else None
        if not isinstance(call, dict) or type(number) is not int or not 0 <= number < len(self._calls):
            return [call]
        function = call.get("function")
        added = function.get("arguments") if isinstance(function, dict) else None
        fresh = self.fresh_arguments(number, added) if isinstance(added, str) else ""
        return [{"index": number, "function": {"arguments": fresh}}] if fresh else []
