"""Errors of the API, before a dialect words them, and the parser of llama-server's errors. Pure.

Errors may also come from another node's API. They are parsed on the event loop, logged and passed on, so
their size is bounded.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshd.base.errors import MeshdError

ANSWER_HEADERS = {
    "Server": "meshd",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",  # no other page includes an answer, as a script say
}
_RETRIED = (408, 409, 429, 502, 503)  # client libraries repeat these, and all above 500
CONTEXT_EXCEEDED = "context_length_exceeded"
# The type of an answer that llama-server could not finish, after meshd's own repeats. After a `server_error`
# in a stream, Continue and opencode ask again for up to two minutes before they show it.
UPSTREAM_ERROR = "upstream_error"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the API: HTTP `status`, `message`, and OpenAI's `type`, `code` and `param`.

    `param`: the field of the request that is at fault. `retry_after`: seconds. `is_final`: the same request
    will fail again, so neither clients nor other nodes may repeat it. `has_waited`: the gateway has already
    waited for the model, so client libraries should report the error instead of retrying silently.
    `context`: the tokens of a prompt that is too long, and how many fit.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str = ""
    param: str | None = None
    retry_after: int | None = None
    allow: tuple[str, ...] = ()
    is_final: bool = False
    has_waited: bool = False
    context: tuple[int, int] | None = None

    def error(self) -> dict[str, object]:
        """Return OpenAI's error object (https://platform.openai.com/docs/guides/error-codes)."""
        error: dict[str, object] = {
            "message": self.message,
            "type": self.type,
            "param": self.param or None,
            "code": self.code or None,
        }
        if self.context is not None:  # as llama-server has them
            error["n_prompt_tokens"], error["n_ctx"] = self.context
        return error

    def headers(self) -> dict[str, str]:
        """Return the headers that go with it."""
        headers: dict[str, str] = {}
        if self.retry_after is not None and not self.is_final:
            headers["Retry-After"] = str(max(1, self.retry_after))
        if self.allow:
            headers["Allow"] = ", ".join(self.allow)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.is_final or self.has_waited or self.status not in _RETRIED:
            headers["x-should-retry"] = "false"  # read by the libraries of OpenAI and Anthropic
        return headers


class HttpRefusal(MeshdError):
    """A request is refused with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def invalid(message: str, param: str | None = None, *, code: str = "") -> HttpRefusal:
    """Return the refusal of a request whose field `param` is wrong."""
    return HttpRefusal(Failure(400, message, code=code, param=param))


def unavailable(message: str, code: str = "busy", retry_after: int = 2) -> HttpRefusal:
    """Return the refusal of a request for which there is no room now."""
    return HttpRefusal(Failure(503, message, type="unavailable_error", code=code, retry_after=retry_after))


def context_exceeded(prompt: int, most: int) -> Failure:
    """Return the failure of a prompt of `prompt` tokens if `most` fit; 0 and 0 if unknown.

    Clients look for the first words of its message.
    """
    context = f" is {most} tokens, and this request has {prompt}" if most else " has been exceeded"
    message = (
        f"the model's maximum context length{context}: shorten it,"
        " or start `meshd serve` with a larger `--ctx-size`"
    )
    counts = (prompt, most) if most else None
    return Failure(400, message, code=CONTEXT_EXCEEDED, param="messages", context=counts)


# Who refuses may be another node: what it says is parsed while others wait, logged and passed on.
MOST_REFUSAL_BYTES = 1 << 20
_MOST_WHY_LETTERS = 2000
_MOST_CODE_LETTERS = 100
_MOST_TOKENS = 1 << 31  # those of llama-server have 32 bits
_MEDIA = "this model is served without {} input: it needs `meshd serve … --mmproj FILE`"
_OPTION = "this model is served without {}: that needs `meshd serve … -- {}`"
# by what llama-server says of it
_NOT_SERVED = {
    **{f"{kind} input is not supported": (400, _MEDIA.format(kind)) for kind in ("image", "audio", "video")},
    "does not support embeddings": (501, _OPTION.format("embeddings", "--embeddings --pooling mean")),
    "does not support reranking": (501, _OPTION.format("reranking", "--reranking")),
    "does not support metrics": (501, _OPTION.format("metrics", "--metrics")),
    "Infill is not supported": (501, "this model cannot infill: it has no fill-in-the-middle tokens"),
}
# What its slots say while they compute (server-context.cpp). All its other errors with status 500 are
# exceptions that its readers of a request throw, which are faults of that request.
_WHILE_COMPUTING = re.compile(
    r"got exception|failed to process mtmd|Compute error|Invalid input batch|context shift"
    r"|the current context|The model produced output|unknown error"
    r"|Failed to (?:load|restore|initialize|allocate)"
)
_FULL = "Context size has been exceeded"
# No token of the model fits the grammar at this place, so it takes one that does not (llama-grammar.cpp).
_NO_TOKEN_FITS = "Unexpected empty grammar stack"
# What the C++ library says of a token that the vocabulary does not have: GCC's and Clang's.
_UNKNOWN_TOKEN = re.compile(
    r"_M_range_check: __n \(which is (\d+)\) >= this->size\(\) \(which is (\d+)\)|^vector$"
)
_TOKENS_OF = {"/detokenize": "tokens", "/tokenize": "content"}
# The field that it names, in each of the forms that it has for that.
_FIELD = re.compile(r"^(?:Field )?[\"'](\w{1,64})[\"']|key '(\w{1,64})' not found|failed to parse (grammar)$")
_TEMPLATE = re.compile(r"Jinja Exception: ([^\n]{1,500})")
_EXCEEDS = "exceed_context_size_error"


def read_failure(body: bytes, status: int, path: str = "") -> Failure | None:
    """Read the error object of an answer with this status, from `path` if known.

    None if there is none, or it is too long.
    """
    if len(body) > MOST_REFUSAL_BYTES:
        return None
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = parsed.get("error") if isinstance(parsed, dict) else None
    failure = object_failure(error, status) if isinstance(error, dict) else None
    if failure is not None and path in _TOKENS_OF and (found := _UNKNOWN_TOKEN.search(failure.message)):
        token, most = found[1], found[2]
        counted = (
            f" {token}: its tokens are 0 to {int(most) - 1}" if token and len(most) < 20 else " of these"
        )
        return invalid(f"the model has no token{counted}", _TOKENS_OF[path], code="invalid_value").failure
    return failure


def object_failure(error: Mapping[str, object], status: int) -> Failure:
    """Read an error object; its own code replaces `status` if it is an HTTP status."""
    # what it says, of bounded length
    code, message = error.get("code"), error.get("message")
    if type(code) is int and 400 <= code < 600:
        status = code
    status = status if status >= 400 else 500
    why, kind = (_short(error.get(*field)) for field in (("message", ""), ("type", "server_error")))
    # what has a name: a prompt that is too long, a feature that is not served, what another node has worded
    if kind == _EXCEEDS or code == CONTEXT_EXCEEDED or (isinstance(message, str) and _FULL in message):
        counts = [error.get("n_prompt_tokens"), error.get("n_ctx")]
        prompt, most = (count if type(count) is int and 0 <= count < _MOST_TOKENS else 0 for count in counts)
        return context_exceeded(prompt, most)
    if isinstance(message, str) and (lacking := _not_served(message)) is not None:
        return lacking
    if isinstance(code, str) and code:  # another node has worded it
        return Failure(status, why, type=kind, code=code[:_MOST_CODE_LETTERS])
    # faults of the request that llama-server calls its own
    if found := _TEMPLATE.search(why):
        why = f"the model's chat template refuses these messages: {found[1].strip()}"
        return Failure(400, why, code="template_refused", param="messages")
    if _NO_TOKEN_FITS in why:
        why = "the grammar or schema allows no token of this model at this place of the answer"
        return Failure(400, why, code="invalid_value", is_final=True)
    if status == 500 and kind == "server_error" and not _WHILE_COMPUTING.search(why):
        status, kind = 400, "invalid_request_error"
    if status == 400:
        field = _FIELD.search(why)
        param = next(filter(None, field.groups()), None) if field is not None else None
        why = f"`{param}` is missing" if field is not None and field[2] else why
        return Failure(400, why, type=kind, code="invalid_request", param=param)
    return Failure(status, why, type=kind, code="upstream_error", retry_after=1 if status == 503 else None)


def _not_served(message: str) -> Failure | None:
    """Return the failure if llama-server was not started with what the request needs, else None.

    Its own message names options of llama-server, or is a server error, which clients retry.
    """
    for words, (status, what) in _NOT_SERVED.items():
        if words in message:
            return Failure(status, what, code="not_served", is_final=True)
    return None


def _short(reason: object) -> str:
    text = reason if isinstance(reason, str) else json.dumps(reason)
    return text if len(text) <= _MOST_WHY_LETTERS else f"{text[:_MOST_WHY_LETTERS]}…"


def plain_failure(status: int, body: bytes) -> Failure:
    """Make a failure from an answer without an error object."""
    text = body[:200].decode("utf-8", "replace").strip()
    detail = f": {text}" if text else ""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Failure(status, f"llama-server answered {status}{detail}", type=kind, code="upstream_error")
