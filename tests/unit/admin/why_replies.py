"""Replies to `meshd why`."""

from dataclasses import replace

from meshd.admin import plan_api
from meshd.model.time_account import PartKind, PartSource, TimeAccount, TimePart


def busy_reply(why_no_round: str = "") -> plan_api.WhyReply:
    """Several answers run at once: none can be divided, but the rounds for all of them, or not even these."""
    reply = why_reply()
    assert reply.token is not None
    a_round = None if why_no_round else replace(reply.token, tokens=380, rounds=100)
    answers = tuple(replace(one, alone=False) for one in reply.answers)
    return replace(reply, requests=4, answers=answers, token=None, round=a_round, why_no_round=why_no_round)


def why_reply(change: str = "drop `garage`", rounds: int = 19) -> plan_api.WhyReply:
    """Return a reply of two workers, one of which is far away."""

    def part(kind: PartKind, where: str, seconds: float, source: PartSource) -> TimePart:
        return TimePart(kind=kind, where=where, seconds=seconds, source=source)

    parts = (
        part(PartKind.SERVER, "desk", 0.001, PartSource.MEASURED),
        part(PartKind.COMPUTING, "garage CPU", 0.010, PartSource.MEASURED),
        part(PartKind.WAY, "garage → desk", 0.040, PartSource.PATH),
    )
    return plan_api.WhyReply(
        model="SmolLM2",
        split="attic CPU: 10 → garage CPU: 20",
        requests=0,
        answers=(
            plan_api.AnswerTime(
                running=False,
                alone=True,
                ended_s_ago=3.0,
                queue_s=0.25,
                prompt_tokens=100,
                prompt_s=0.5,
                generated_tokens=20,
                generated_s=1.2,
            ),
        ),
        token=TimeAccount(seconds=0.06, tokens=19, parts=parts, unexplained=0.009, rounds=rounds),
        prompt=None,
        advice=plan_api.AdviceView(
            change=change,
            gain=0.42 if change else 0.0,
            why="predicted for a prompt of 512 tokens and an answer of 256",
            generate_tok_s=19.2,
            generate_tok_s_then=33.1,
            measured=True,
        ),
        generate_tok_s_at_load=21.4,
        since_load=("`desk ↔ garage` takes 12.1 ms of a token (4.1 ms then)",),
        ways=plan_api.WaysView(
            layers_tok_s=None, tensors_tok_s=None, text="not by tensors: there is no cable"
        ),
    )
