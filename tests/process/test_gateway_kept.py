"""Clients come back for answers that the gateway has kept: to the next gateway, or on another connection."""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from meshd.gateway.api_key import ApiKey, KeyLimits
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.gateway.kept_folder import KeptFolder
from meshd.gateway.one_model import OneModel
from meshd.gateway.server import Gateway
from meshd.model.status import ModelState

from tests.conformance.run import run, until
from tests.process.client_scene import scene
from tests.process.gateway_fake import DONE, chunk, last_chunk, serving
from tests.process.kept_scene import ALL, CHAT, CONFIG, KEY, Model, Place, data_of, first, numbered, play
from tests.process.test_gateway_continued import dies_after


@pytest.mark.parametrize("temperature", [0, 1], ids=["greedy", "sampled"])
def test_the_next_daemon_sends_what_the_client_lacks_and_the_rest(temperature: int) -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            assert await place.events(2, max_tokens=9, temperature=temperature) == numbered(*ALL[:2])
        assert len(place.files) == 1
        place.server.let_go.set()
        async with place.daemon() as gateway:
            rest = await place.whole(max_tokens=9, temperature=temperature, last="1")
            assert data_of(rest) == numbered(*ALL, since=1)[1:]
            first, second = place.asked
            if temperature:
                assert second["messages"][-1] == {"role": "assistant", "content": "ab"}  # type: ignore[index]
                assert (first["max_tokens"], second["max_tokens"]) == (9, 7)
            else:
                assert second == first, "a short one is made again, so that its text is the same"
            assert gateway.status.tokens == 1, "each token is counted once"
            again = await place.whole(max_tokens=9, temperature=temperature)
            assert data_of(again) == numbered(*ALL), "without Last-Event-ID all of it"
            assert len(place.asked) == 2, "it is over: nobody is asked"
        lines = [json.loads(line) for line in (place.folder / "answers.jsonl").read_text().splitlines()]
        taken = 1 if temperature else 3  # computed for the client that came back
        assert [(one["generated_tokens"], one["status"]) for one in lines] == [(2, 499), (taken, 200)]

    play(check, Model())


def test_what_is_made_again_for_a_client_that_comes_back_counts_for_its_quota() -> None:
    """Else it could have the same seconds computed as often as it likes, for a token each time."""
    config = replace(CONFIG, api_keys=(ApiKey("anna-secret", "anna", KeyLimits(tokens_per_day=30)),))

    async def check(place: Place) -> None:
        async with place.daemon(config) as gateway:
            await place.events(2, secret="anna-secret")
            await until(lambda: gateway.status.keys[0].active == 0)
            cut = gateway.status.keys[0]
            # nobody had told yet of how many tokens the prompt is
            assert cut.tokens_today == cut.prompt_tokens + 2 and 3 < cut.prompt_tokens < 50
            place.server.let_go.set()
            assert data_of(await place.whole(secret="anna-secret", last="2")) == numbered(*ALL)[2:]
            used = gateway.status.keys[0]
            assert (used.prompt_tokens, used.generated_tokens) == (cut.prompt_tokens + 3, 2 + 3)
            assert used.tokens_today == used.prompt_tokens + used.generated_tokens
            assert gateway.status.tokens == 3, "each token is counted once"
            assert await place.refused(secret="anna-secret") == (429, "insufficient_quota")

    play(check, Model())


def test_what_is_made_again_after_a_loss_does_not() -> None:
    config = replace(CONFIG, api_keys=(ApiKey("anna-secret", "anna"),))

    async def check(place: Place) -> None:
        async with place.daemon(config) as gateway:
            assert data_of(await place.whole(secret="anna-secret")) == numbered(*ALL)
            assert len(place.asked) == 2
            assert gateway.status.keys[0].generated_tokens == 3

    play(check, dies_after(*ALL[:2], then=tuple(ALL)))


def test_without_a_key_nothing_is_kept_and_nothing_is_numbered() -> None:
    async def check(place: Place) -> None:
        place.server.let_go.set()
        async with place.daemon():
            assert data_of(await place.whole(key="", last="7")) == ALL
        assert place.files == []

    play(check, Model())


def test_a_gateway_that_keeps_nothing_takes_no_notice() -> None:
    async def check(place: Place) -> None:
        place.server.let_go.set()
        place.gateway = Gateway(CONFIG, OneModel(place.upstream))
        async with serving(place.gateway):
            assert data_of(await place.whole()) == ALL
            assert data_of(await place.whole(last="no number")) == ALL

    play(check, Model())


def test_a_client_that_lost_its_connection_comes_back_to_the_same_daemon() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
            await place.server.until(lambda: place.server.cancelled == 1)
            place.server.let_go.set()
            assert data_of(await place.whole(last="2")) == numbered(*ALL)[2:]

    play(check, Model())


def test_a_client_whose_connection_is_dead_need_not_wait_until_that_is_noticed() -> None:
    async def check(place: Place) -> None:
        async with place.daemon(), place.post() as dead:
            await first(dead, 2)
            place.server.let_go.clear()
            living = asyncio.ensure_future(place.whole(last="2"))
            told = await dead.read()
            assert b'"answer_taken_over"' in told and b"id:" not in told
            await place.server.until(lambda: len(place.server.seen) == 2)
            place.server.let_go.set()
            assert data_of(await living) == numbered(*ALL)[2:]

    play(check, Model())


def test_it_waits_for_the_model_which_is_loading_after_a_restart() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.server.let_go.set()
        place.upstream.readiness = Readiness(ModelState.LOADING, "43 % of the weights")
        place.upstream.weights = b""  # not known before it is loaded
        async with place.daemon():
            assert await place.refused(key="another-key") == (503, "model_loading")
            async with place.post(last="1") as answer:
                assert await first(answer, 1) == numbered(*ALL)[1:2], "what is kept comes at once"
                said = b""
                while b": 43 % of the weights" not in said:
                    said += await answer.content.readany()
                place.upstream.weights = bytes(32)
                place.upstream.readiness = Readiness(ModelState.READY, "")
                assert data_of(await answer.read()) == numbered(*ALL)[2:]

    play(check, Model())


def test_another_model_begins_anew_or_says_so() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.server.let_go.set()
        place.upstream.weights = bytes([1]) * 32
        async with place.daemon():
            assert await place.refused(last="2") == (404, "answer_not_kept")
            assert data_of(await place.whole()) == numbered(*ALL)
            assert len(place.asked) == 2 and place.asked[0] == {
                **place.asked[1],
                "seed": place.asked[0]["seed"],
            }

    play(check, Model())


def test_another_model_that_shows_when_it_is_loaded() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        place.upstream.readiness = Readiness(ModelState.LOADING, "loading")
        place.upstream.weights = b""
        async with place.daemon():
            async with place.post(last="2") as answer:
                while b": loading" not in await answer.content.readany():
                    pass
                place.upstream.weights = bytes([1]) * 32
                place.upstream.readiness = Readiness(ModelState.READY, "")
                assert b'"answer_not_kept"' in await answer.read()
            assert place.files == [] and len(place.asked) == 1

    play(check, Model())


@pytest.mark.parametrize("asked", [{"grammar": 'root ::= "abc"'}, {"n": 2}], ids=["grammar", "several"])
def test_the_same_is_asked_for_again_with_the_seed_that_was_drawn(asked: dict[str, object]) -> None:
    """Where the text so far does not decide what comes: what the client has is dropped."""

    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2, temperature=1, **asked)
        place.server.let_go.set()
        async with place.daemon() as gateway:
            rest = await place.whole(last="2", temperature=1, **asked)
            assert data_of(rest) == numbered(*ALL)[2:]
            assert gateway.status.tokens == 1
        one, two = place.asked
        assert one == two and isinstance(one["seed"], int)

    play(check, Model())


def test_a_run_that_says_something_else_ends_with_an_error_and_the_next_begins_anew() -> None:
    model = Model()

    async def check(place: Place) -> None:
        asked = {"grammar": 'root ::= "abc"'}
        async with place.daemon():
            await place.events(2, **asked)
        place.server.let_go.set()
        model.events = [chunk("x"), last_chunk(1), DONE]
        async with place.daemon():
            assert b'"upstream_lost"' in await place.whole(last="2", **asked)
            assert place.files == []
            assert data_of(await place.whole(**asked)) == numbered(*model.events)

    play(check, model)


def test_a_restart_in_the_middle_of_the_replay() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            await place.events(2)
        for _ in range(3):
            async with place.daemon():
                assert await place.events(1, last="1") == numbered(*ALL)[1:2]
        place.server.let_go.set()
        async with place.daemon():
            assert data_of(await place.whole(last="2")) == numbered(*ALL)[2:]

    play(check, Model())


def test_a_whole_answer_is_kept_for_a_client_that_did_not_get_it() -> None:
    async def check(place: Place) -> None:
        async with place.daemon():
            answer = await place.whole(stream=False, temperature=1)
        async with place.daemon():
            assert await place.whole(stream=False, temperature=1) == answer
            assert len(place.asked) == 1, "the same draw, and made once"
            assert await place.refused(stream=False, temperature=0) == (422, "idempotency_key_reused")

    play(check, Model())


def test_a_client_daemon_goes_on_at_a_head_with_the_same_weights_alone() -> None:
    """It was restarted meanwhile, and waits for such a head. Heads do not learn the key."""

    async def check() -> None:
        async with scene() as here:
            begun = asyncio.Event()

            async def asked(count: int, last: str = "") -> list[bytes]:
                kept = KeptFolder(here.folder / "kept", wall=time.time)
                config = GatewayConfig(port=0, fails_over=True, continue_seconds=5.0)
                gateway = Gateway(config, here.api, kept=kept, wall=time.time)
                headers = {"Idempotency-Key": KEY} | ({"Last-Event-ID": last} if last else {})
                body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0}
                async with (
                    serving(gateway),
                    here.http.post(gateway.url + CHAT, json=body, headers=headers) as answer,
                ):
                    assert answer.status == 200, await answer.read()
                    events = await first(answer, 1)
                    begun.set()
                    return [*events, *await first(answer, count - len(events))]

            one = await here.head("one", Model())
            assert (await asked(2))[:2] == numbered(*ALL[:2])
            begun.clear()
            one.models = [replace(one.models[0], fingerprint=bytes(32))]  # another model of that name
            await until(lambda: [model.fingerprint for model in here.told("one") or ()] == [bytes(32)])
            rest = asyncio.ensure_future(asked(len(ALL) - 1, last="1"))
            await begun.wait()
            two = await here.head("two", Model())
            two.server.let_go.set()
            assert await rest == numbered(*ALL)[1:]
            assert (len(one.asked), len(two.asked)) == (1, 1)
            headers = [headers for head in (one, two) for _, _, headers, _ in head.server.seen]
            assert not any("Idempotency-Key" in one for one in headers)

    run(check())
