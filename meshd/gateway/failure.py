"""Errors of the API: OpenAI's error object, as a response or as the last event of a stream."""

import json
from dataclasses import dataclass

from aiohttp import web

from meshd.base.errors import MeshdError
from meshd.gateway.events import StreamForm
from meshd.gateway.interface import Readiness

ANSWER_HEADERS = {
    "Server": "meshd",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",  # no other page includes an answer, as a script say
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the API: HTTP `status`, OpenAI's `message`, `type` and `code`; `retry_after` in seconds."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str = ""
    retry_after: int | None = None
    allow: tuple[str, ...] = ()

    def error(self) -> dict[str, str | None]:
        """OpenAI's error object (https://platform.openai.com/docs/guides/error-codes)."""
        return {"message": self.message, "type": self.type, "param": None, "code": self.code or None}

    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, self.retry_after))
        if self.allow:
            headers["Allow"] = ", ".join(self.allow)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> web.Response:
        """The failure as a whole response."""
        return web.json_response({"error": self.error()}, status=self.status, headers=self.headers())

    def event(self, form: StreamForm) -> bytes:
        """The failure as the last event of a stream that has already begun."""
        error: dict[str, str | None] = self.error()
        if form is StreamForm.RESPONSES:
            return _event({"type": "error", **_only(error, "message", "code", "param")}, name="error")
        if form is StreamForm.ANTHROPIC:
            inner = {"type": "api_error", "message": self.message}
            return _event({"type": "error", "error": inner}, name="error")
        return _event({"error": error})


class HttpRefusal(MeshdError):
    """A request ends here, with this failure as its answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def not_ready(now: Readiness) -> Failure:
    """The model cannot be asked now."""
    return Failure(
        503,
        f"the model is not ready ({now.state}): {now.reason}",
        type="unavailable_error",
        code=f"model_{now.state}",
        retry_after=now.retry_after,
    )


def _only(error: dict[str, str | None], *names: str) -> dict[str, str | None]:
    return {name: error[name] for name in names}


def _event(data: object, *, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()
