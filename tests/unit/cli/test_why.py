"""why: against a daemon that answers."""

import json

from tests.unit.admin.fake import FakeControl
from tests.unit.admin.why_replies import busy_reply, why_reply

from .shell import meshd, refused


def test_the_parts_of_a_token_for_a_person(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply()
    ran = meshd("why")
    assert ran.code == 0
    for word in (
        "SmolLM2: attic CPU: 10 → garage CPU: 20",
        "3 s ago",
        "100 tokens, 0.50 s",
        "20 tokens, 16.7 tok/s",
        "garage → desk",
        "40.0 ms",
        "67%",
        "not explained",
        "9.0 ms",
        "mean of 19 tokens",
        "\nspeed: 16.7 tok/s measured, 19.2 tok/s predicted now, as by `meshd plan`, ",
        ", 21.4 tok/s predicted at load\n",
        "\nsince the load: `desk ↔ garage` takes 12.1 ms of a token (4.1 ms then)\n",
        "change: drop `garage` (predicted 19.2 → 33.1 tok/s; ",
        "; as it runs, a request takes 1.72 times as long)",
    ):
        assert word in ran.out, word


def test_rounds_of_several_tokens(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply(rounds=7)
    assert "mean of 19 tokens in 7 rounds" in meshd("why").out
    assert json.loads(meshd("why", "--json").out)["token"]["rounds"] == 7


def test_a_round_of_several_answers(daemon: FakeControl) -> None:
    daemon.why_reply = busy_reply()
    ran = meshd("why")
    for word in (
        "3 s ago, among others",
        "A ROUND ",
        "garage → desk",
        "mean of 100 rounds, 3.8 tokens each",
        "A ROUND: llama-server computes one for all running requests, or for a step of a prompt; ",
    ):
        assert word in ran.out, word
    assert "A TOKEN" not in ran.out and "cannot be divided by rounds" not in ran.err
    body = json.loads(meshd("why", "--json").out)
    assert (body["token"], body["round"]["tokens"], body["round"]["rounds"]) == (None, 380, 100)


def test_why_nothing_can_be_divided(daemon: FakeControl) -> None:
    daemon.why_reply = busy_reply("no answer was streamed, so nobody saw when tokens came")
    assert "it cannot be divided by rounds: no answer was streamed" in meshd("why").err


def test_where_nothing_would_gain_it_says_so(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply(change="")
    assert "change: nothing: predicted for a prompt" in meshd("why").out


def test_for_a_script(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply()
    body = json.loads(meshd("why", "--json").out)
    assert body["token"]["parts"][1] == {
        "kind": "computing",
        "where": "garage CPU",
        "seconds": 0.01,
        "source": "measured",
    }
    assert (body["token"]["seconds"], body["token"]["unexplained"], body["prompt"]) == (0.06, 0.009, None)
    assert body["advice"]["change"] == "drop `garage`" and body["answers"][0]["generated_tokens"] == 20


def test_before_there_was_an_answer(daemon: FakeControl) -> None:
    refused(meshd("why", "--json"), 1, "nothing was answered", "ask it something first")
