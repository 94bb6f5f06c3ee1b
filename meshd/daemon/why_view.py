"""Where the time of a model's tokens went, as `meshd why` shows it. Pure."""

from meshd.admin.why_api import AdviceView, AnswerTime, WhyReply
from meshd.model.time_account import TimeAccount
from meshd.role.head.advice import SplitAdvice
from meshd.role.head.explain import Explained
from meshd.role.head.timed_answers import RunningAnswer, TimedAnswer


def why_reply(model: str, found: Explained) -> WhyReply:
    """`found` has an answer at least, or one that runs."""
    answers = [_answer(one, found.now) for one in found.answers]
    if found.running is not None:
        answers.append(_running(found.running))
    advice = found.advice
    scale = measured_scale(found.token, advice)
    return WhyReply(
        model=model,
        split=" → ".join(f"{part.node} {part.device}: {part.layers}" for part in found.split if part.layers),
        requests=found.active,
        answers=tuple(answers),
        token=found.token,
        prompt=found.prompt,
        round=found.round,
        why_no_round=found.why_no_round,
        advice=AdviceView(
            change=advice.change,
            gain=round(advice.gain, 4),
            why=advice.why,
            generate_tok_s=round(advice.now_tok_s * scale, 2),
            generate_tok_s_then=round(advice.then_tok_s * scale, 2),
            measured=advice.is_measured,
        ),
    )


def measured_scale(token: TimeAccount | None, advice: SplitAdvice) -> float:
    """What was measured, as a part of what is predicted: a change is compared with what is seen now."""
    if token is None or token.seconds <= 0 or advice.now_tok_s <= 0:
        return 1.0
    return 1 / (token.seconds * advice.now_tok_s)


def _answer(one: TimedAnswer, now: float) -> AnswerTime:
    return AnswerTime(
        running=False,
        alone=one.alone,
        ended_s_ago=round(max(0.0, now - one.ended), 3),
        queue_s=round(one.queue, 4),
        prompt_tokens=one.timings.prompt_tokens,
        prompt_s=one.timings.prompt_seconds,
        generated_tokens=one.timings.generated_tokens,
        generated_s=one.timings.generated_seconds,
    )


def _running(one: RunningAnswer) -> AnswerTime:
    return AnswerTime(
        running=True,
        alone=True,
        ended_s_ago=0.0,
        queue_s=0.0,
        prompt_tokens=0,
        prompt_s=0.0,
        generated_tokens=one.tokens,
        generated_s=round(one.seen - one.begin, 4),
    )
