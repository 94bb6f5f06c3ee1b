"""Several models of one head, between fakes: loaded for requests, unloaded for others, or refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.gateway.interface import ModelWish, Readiness
from meshd.head.model import TRY_AGAIN_SECONDS, Model
from meshd.head.model_pool import ModelOnDemand, ModelPool, PooledModel, PoolTurn
from meshd.head.pool_policy import LEAST_TURN_SECONDS, PATIENCE_SECONDS, ModelRule
from meshd.model.status import ModelState

from tests.unit.head.rig import DEVICE_LINES
from tests.unit.head.scene import LITTLE, Scene, scene
from tests.unit.head.stubs import FakeFile, StubChild

pytestmark = pytest.mark.virtual

ALONE = (ModelRule("a"), ModelRule("b"))
GROUP = (ModelRule("a", "g"), ModelRule("b", "g"), ModelRule("c"))


class Rig:
    """A pool of models on one head."""

    def __init__(self, it: Scene, rules: Sequence[ModelRule], preload: str) -> None:
        self.it = it
        self.files = {rule.name: FakeFile() for rule in rules}
        given = [self._given(number, rule, preload) for number, rule in enumerate(rules)]
        self.pool = ModelPool(given)
        self.task = it.net.owner.start(self.pool.serve(), name="pool")

    def _given(self, number: int, rule: ModelRule, preload: str) -> PooledModel:
        name = rule.name
        options = replace(self.it.options, name=name, child=f"llama-server-{name}", socket=f"m{number}.sock")
        head = Model(self.it.bench.runtime, self.files[name], options)
        return PooledModel(rule, head, aliases=(f"{name}-alias",), preload=name in preload)

    def model(self, name: str) -> ModelOnDemand:
        found = self.pool.find(ModelWish(name))
        assert found is not None
        return found

    async def begun(self, name: str) -> PoolTurn:
        """A request that goes ahead."""
        turn = self.model(name).turn()
        assert await turn.begin() is None
        return turn

    async def refused(self, name: str) -> Readiness:
        turn = self.model(name).turn()
        said = await turn.begin()
        turn.end()
        assert said is not None
        return said

    def running(self) -> list[str]:
        """The processes that are there."""
        children: list[StubChild] = self.it.bench.children
        return [child.status.name for child in children if not child.ended]

    def states(self) -> dict[str, str]:
        return {one.name: str(one.state) for one in self.pool.statuses}


@asynccontextmanager
async def rig(
    folder: Path, rules: Sequence[ModelRule], *, min_workers: int = 0, preload: str = ""
) -> AsyncIterator[Rig]:
    async with scene(folder, min_workers=min_workers) as it:
        yield Rig(it, rules, preload)


async def test_a_model_is_loaded_by_the_first_request_and_makes_room_for_another(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        await asyncio.sleep(60)
        assert (here.running(), here.states()) == ([], {"a": "unloaded", "b": "unloaded"})
        first = await here.begun("a")
        assert (here.running(), here.states()) == (["llama-server-a"], {"a": "ready", "b": "unloaded"})
        waiting = here.model("b").turn()
        alone = "models without a common `group` are loaded one at a time"
        assert waiting.notice == f"b waits for a, which has 1 request under way: {alone}"
        begun = asyncio.create_task(waiting.begin())
        await asyncio.sleep(3600)
        assert not begun.done(), "an answer is under way"
        first.end()
        assert await begun is None
        assert waiting.notice == ""
        assert here.pool.statuses[0].reason == f"b was asked for: {alone}"
        assert (here.running(), here.states()) == (["llama-server-b"], {"a": "unloaded", "b": "ready"})
        assert here.pool.status.model is not None and here.pool.status.model.name == "b"
        assert [child.restarts for child in here.pool.status.children] == [0]
        waiting.end()
        await here.begun("a")
        assert here.pool.status.children[0].restarts == 0, "it was unloaded on purpose"


async def test_a_request_that_comes_when_the_turn_is_over_hears_that(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        first = await here.begun("a")
        other = here.model("b").turn()
        await asyncio.sleep(LEAST_TURN_SECONDS + 1)
        late = here.model("a").turn()
        asked = asyncio.create_task(late.begin())
        await asyncio.sleep(1)
        assert late.notice == "a makes room for b; this request is for its next turn"
        first.end()
        assert await other.begin() is None
        assert not asked.done()
        other.end()
        assert await asked is None


async def test_names_aliases_and_the_default(tmp_path: Path) -> None:
    async with rig(tmp_path, GROUP) as here:
        found = [here.pool.find(ModelWish(name)) for name in ("", "a", "a-alias")]
        assert found == [here.pool.all[0]] * 3
        assert here.pool.find(ModelWish("nobody")) is None
        status = here.pool.statuses[1]
        assert (status.name, status.aliases, status.group) == ("b", ("b-alias",), "g")
        assert here.model("b").upstream.model_name == "b"
        sockets = {one.upstream.socket_path.name for one in here.pool.all}
        assert len(sockets) == 3


async def test_what_is_preloaded_needs_no_request(tmp_path: Path) -> None:
    async with rig(tmp_path, GROUP, preload="ab") as here:
        await asyncio.sleep(10)
        assert here.states() == {"a": "ready", "b": "ready", "c": "unloaded"}


async def test_requests_are_counted_and_clients_may_go_while_they_wait(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        first = await here.begun("a")
        turns = [here.model("b").turn() for _ in range(3)]
        begins = [asyncio.create_task(turn.begin()) for turn in turns]
        await asyncio.sleep(1)
        counts = {one.name: (one.running, one.waiting) for one in here.pool.statuses}
        assert counts == {"a": (1, 0), "b": (0, 3)}
        first.end()
        begins[0].cancel()  # and is not ended before the pool looks again
        assert await begins[1] is None and await begins[2] is None
        for turn in turns:
            turn.end()
        assert [(one.running, one.waiting) for one in here.pool.statuses] == [(0, 0), (0, 0)]


async def test_a_model_that_fails_refuses_with_the_reason_and_others_are_served(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        here.files["a"].replaced, here.files["a"].paths = True, (tmp_path,)
        said = await here.refused("a")
        assert said.state is ModelState.FAILED and "replaced by another file" in said.reason
        (await here.begun("b")).end()
        here.files["a"].replaced = False
        await here.begun("a")


async def test_what_failed_is_tried_again_as_long_as_it_is_there(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        here.files["a"].replaced = True
        await here.refused("a")
        here.files["a"].replaced = False
        assert (await here.refused("a")).state is ModelState.FAILED
        await asyncio.sleep(TRY_AGAIN_SECONDS + 1)
        await here.begun("a")


async def test_a_request_waits_for_workers_for_a_while(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE, min_workers=1) as here:
        began = asyncio.get_running_loop().time()
        waiting = here.model("a").turn()
        asked = asyncio.create_task(waiting.begin())
        await asyncio.sleep(1)
        assert "waiting for workers: 0 of 1" in waiting.notice
        said = await asked
        assert said is not None and said.state is ModelState.WAITING
        assert asyncio.get_running_loop().time() - began == pytest.approx(PATIENCE_SECONDS, abs=1)
        waiting.end()
        here.it.worker("anna")
        await asyncio.sleep(10)
        await here.begun("a")


async def test_loads_that_fail_again_and_again_do_not_keep_requests_for_ever(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        here.it.bench.report_fails = True
        said = await here.refused("a")
        assert "cannot be started" in said.reason
        here.it.bench.report_fails = False
        await here.begun("b")


async def test_models_without_room_beside_each_other_take_turns(tmp_path: Path) -> None:
    async with rig(tmp_path, GROUP) as here:
        first = await here.begun("a")
        here.it.bench.device_lines = LITTLE
        waiting = here.model("b").turn()
        begun = asyncio.create_task(waiting.begin())
        await asyncio.sleep(5)
        assert here.pool.statuses[1].reason == "there is no room for it beside the others"
        assert waiting.notice.startswith("b waits for the memory of a")
        here.it.bench.device_lines = DEVICE_LINES
        first.end()
        assert await begun is None
        assert here.states() == {"a": "unloaded", "b": "ready", "c": "unloaded"}
        assert here.pool.statuses[0].reason == "it made room for b"


async def test_one_without_room_for_itself_refuses_with_the_numbers(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        here.it.bench.device_lines = LITTLE
        said = await here.refused("a")
        assert said.no_room and "memory" in said.reason


async def test_a_model_that_is_lost_is_loaded_again_and_keeps_its_requests(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        await here.begun("a")
        other = asyncio.create_task(here.model("b").turn().begin())
        here.it.bench.children[-1].die("killed", signal=9)
        await asyncio.sleep(30)
        assert here.states() == {"a": "ready", "b": "unloaded"}
        assert not other.done(), "the answer goes on"
        other.cancel()


async def test_the_end_unloads_all(tmp_path: Path) -> None:
    async with rig(tmp_path, GROUP, min_workers=1) as here:
        here.it.worker("anna")
        await here.begun("a")
        waiting = asyncio.create_task(here.model("c").turn().begin())
        here.task.cancel()
        await asyncio.wait([here.task])
        await asyncio.sleep(1)
        assert here.running() == [] and not here.it.roles["anna"].status.children
        waiting.cancel()


async def test_an_unexpected_error_of_a_head_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with rig(tmp_path, ALONE) as here:

            async def broken(_progress: object = None) -> None:
                raise ZeroDivisionError

            here.files["a"].index = broken  # type: ignore[method-assign, assignment]
            here.model("a").turn()
            await asyncio.wait([here.task])
    assert caught.group_contains(ZeroDivisionError)


async def test_what_the_models_hold_and_are_asked_is_told_of_all(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=1) as it:
        it.worker("attic")
        rig = Rig(it, GROUP, preload="")
        assert rig.pool.held == {} and await rig.pool.explain() is None
        assert rig.pool.readiness.state is ModelState.READY, "any of them can be loaded"
        for name in ("a", "b"):
            (await rig.begun(name)).end()
        held = [rig.model(name).upstream.held for name in ("a", "b")]
        assert all(one[("attic", "CPU")] > 0 for one in held)
        assert rig.pool.held == {("attic", "CPU"): sum(one[("attic", "CPU")] for one in held)}
        assert rig.pool.serving(rig.files["c"].paths[0]) is not None
        assert rig.pool.drafting(rig.files["c"].paths[0]) is not None
        assert rig.pool.serving(tmp_path / "other.gguf") is None
        assert rig.pool.drafting(tmp_path / "other.gguf") is None


async def test_a_user_unloads_a_model_without_requests_and_only_then(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE, preload="a") as here:
        turn = await here.begun("a")
        assert here.model("a").unload_unused() == "1 request under way or waiting for it"
        turn.end()
        assert here.model("a").unload_unused() == ""
        await asyncio.sleep(60)
        assert (here.running(), here.states()["a"]) == ([], "unloaded")
        assert here.model("a").upstream.readiness.reason == "a user has unloaded it"
        assert here.model("a").unload_unused() == "", "it is unloaded already"
        (await here.begun("a")).end()
        assert here.states()["a"] == "ready"


async def test_a_preloaded_model_that_a_user_unloads_while_it_loads_stays_away(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE, preload="a") as here:
        while here.states()["a"] == "unloaded":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        assert here.model("a").unload_unused() == ""
        await asyncio.sleep(120)
        assert (here.running(), here.states()["a"]) == ([], "unloaded")


async def test_a_user_loads_a_model_in_place_of_an_idle_one(tmp_path: Path) -> None:
    async with rig(tmp_path, ALONE) as here:
        first = await here.begun("a")
        with pytest.raises(UserError, match="b needs the room of a, which has 1 request"):
            here.pool.load("b-alias")
        with pytest.raises(UserError, match="a stays: 1 request under way"):
            here.pool.unload("a")
        first.end()
        here.pool.load("b-alias")
        await asyncio.sleep(10)
        assert here.states() == {"a": "unloaded", "b": "ready"}
        here.pool.load("b")
        here.pool.unload("b")
        await asyncio.sleep(10)
        assert (here.running(), here.states()) == ([], {"a": "unloaded", "b": "unloaded"})
        with pytest.raises(UserError, match="no model `c`") as unknown:
            here.pool.load("c")
        assert unknown.value.hint == "choose one of `a`, `b`"
