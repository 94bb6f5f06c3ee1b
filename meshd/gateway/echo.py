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


class ChatEcho:
    """Of an answer with calls of tools."""

    def __init__(self, text: str, reasoning: str, calls: Sequence[SentCall]) -> None:
        self._said = {"content": _Left(text), "reasoning_content": _Left(reasoning)}
        self._calls = [_Left(call.text) for call in calls]

    def fresh(self, delta: Mapping[str, object]) -> dict[str, object]:
        """Of a chat's delta what the client lacks. Raises OtherAnswer."""
        fresh = dict(delta)
        for name, left in self._said.items():
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

    @property
    def calls(self) -> int:
        """How many the client has begun to see."""
        return len(self._calls)

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
