"""The time of a model's tokens by part, as `meshd why` shows it. Pure."""

from meshd.admin.why_api import AdviceView, AnswerTime, WhyReply
from meshd.head.explain import Explained
from meshd.head.timed_answers import RunningAnswer, TimedAnswer
from meshd.plan.words import basis_in_words, change_in_words, part_in_words


def why_reply(model: str, found: Explained) -> WhyReply:
    """Return the reply of `meshd why`. `found` has at least one answer, finished or running."""
    answers = [_answer(timed, found.now) for timed in found.answers]
    if found.running is not None:
        answers.append(_running(found.running))
    advice, at_load = found.advice, found.facts.at_load
    now = advice.now.prediction
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
            change=change_in_words(advice.change) if advice.change is not None else "",
            gain=round(advice.gain, 4),
            why=basis_in_words(advice.basis),
            generate_tok_s=round(now.generate_tok_s, 2),
            generate_tok_s_then=round(advice.then_tok_s, 2),
            measured=now.is_measured,
        ),
        generate_tok_s_at_load=(
            round(at_load.prediction.generate_tok_s, 2) if at_load.prediction.is_measured else None
        ),
        since_load=tuple(map(part_in_words, advice.now.changes_since(at_load))),
    )


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
