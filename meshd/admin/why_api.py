"""The request for where the time of a model's tokens went, and its reply; see api.py for the rules."""

from dataclasses import dataclass

from meshd.admin.request import Request
from meshd.model.time_account import TimeAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTime:
    """An answer. `queue_s`: from its request to the slot that took it; `alone`: no other was under way.

    One that is `running` has no times of its prompt, and only those tokens that were streamed.
    """

    running: bool
    alone: bool
    ended_s_ago: float
    queue_s: float
    prompt_tokens: int
    prompt_s: float
    generated_tokens: int
    generated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceView:
    """The change that would gain most. `gain`: the share of an answer's time that it is predicted to save.

    `change` is empty where nothing is worth it, and `why` says so. Rates in tokens a second, predicted now as
    `meshd plan` does: as it runs, and with the change.
    """

    change: str
    gain: float
    why: str
    generate_tok_s: float
    generate_tok_s_then: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyReply:
    """`token` is one of the running answer, or of the last that was alone; `prompt` the last one's.

    Null where no answer had the machines to itself. `round`: of the newest time in which answers were
    streamed, several at once or with drafts: a mean over the rounds in which llama-server computed for all of
    them; null where `token` is of that time, or `why_no_round` says why. `requests`: under way now. `split`:
    as it runs. `generate_tok_s_at_load`: what was predicted of it then, null where a device was not measured;
    `since_load`: which inputs of the prediction have changed, in words.
    """

    model: str
    split: str
    requests: int
    answers: tuple[AnswerTime, ...]
    token: TimeAccount | None
    prompt: TimeAccount | None
    advice: AdviceView
    round: TimeAccount | None = None
    why_no_round: str = ""
    generate_tok_s_at_load: float | None = None
    since_load: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRequest(Request[WhyReply], name="why"):
    """A request for the token times of the model that this node serves."""
