"""Whom a head asks when some workers are better done without."""

import asyncio
from dataclasses import replace

import pytest
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.head.failures import ENDS, TRIES
from meshd.head.worker_choice import FOR_LOSSES, Roster
from meshd.identity.membership import Role
from meshd.model.layer_range import LayerRange
from meshd.peer.interface import PeerState, PeerStatus
from meshd.plan.wishes import HeadOptions

from tests.unit.head.fake_mesh import Net
from tests.unit.plan.plain_options import PLAIN

pytestmark = pytest.mark.virtual


class Scene:
    """Three workers, of which `bad` and `worse` end their leases too soon."""

    def __init__(self, *, least: int, only: tuple[str, ...] = (), standby: tuple[str, ...] = ()) -> None:
        net = Net(Owner())
        head = net.mesh("head", "serve")
        self.meshes = {name: net.mesh(name) for name in ("bad", "good", "worse")}
        self.now = asyncio.get_running_loop().time()
        self.roster = Roster(head, replace(PLAIN, min_workers=least, workers=only, standby=standby))
        for name, ends in (("bad", ENDS), ("worse", ENDS + 1)):
            for _ in range(ends):
                self.roster.backoff.ended(self.status(name), "it went", self.now, lasted=1.0)

    def status(self, name: str) -> PeerStatus:
        return next(peer for peer in self.roster.connected() if peer.name == name)

    def asked(self) -> list[str]:
        return [peer.name for peer in self.roster.workers()]


async def test_no_more_of_them_are_asked_than_are_needed_and_the_best_first() -> None:
    for least, asked in (
        (0, ["good"]),
        (1, ["good"]),
        (2, ["bad", "good"]),
        (3, ["bad", "good", "worse"]),
        (4, ["bad", "good", "worse"]),
    ):
        it = Scene(least=least)
        assert it.asked() == asked
        assert [why.split()[1] for why in it.roster.left_out()] == [
            name for name in ("bad", "worse") if name not in asked
        ]
        assert len(it.roster.used_all_the_same()) == len(asked) - 1
        assert it.roster.spares() == (len(asked) < 3)


async def test_one_that_may_not_be_asked_at_all_is_no_other() -> None:
    """It is gone, or every load with it failed."""
    it = Scene(least=1)
    for _ in range(TRIES):
        it.roster.backoff.failed(it.status("good"), "it crashed", it.now)
    assert it.asked() == ["bad"]
    assert [why.split()[1] for why in it.roster.left_out()] == ["good", "worse"]
    it = Scene(least=1)
    it.meshes["good"].say(PeerState.LOST)
    assert it.asked() == ["bad"]


async def test_a_model_that_needs_all_gets_all() -> None:
    it = Scene(least=1)
    it.roster.all_needed = True
    assert it.asked() == ["bad", "good", "worse"]
    assert not it.roster.spares()


async def test_a_name_that_two_workers_have_means_neither_and_their_ids_are_told() -> None:
    net = Net(Owner())
    head = net.mesh("head", "serve")
    two = [net.mesh("garage"), net.mesh("garage", seed="other")]
    shorts = [mesh.key.peer.short for mesh in two]
    roster = Roster(head, replace(PLAIN, min_workers=1, workers=("garage",)))
    assert roster.workers() == []
    assert sorted(roster.left_out()) == sorted(
        f"`--workers` fits several nodes: for this garage give its id, `{short}`" for short in shorts
    )
    one = Roster(head, replace(PLAIN, min_workers=1, workers=(shorts[1],)))
    assert [peer.peer for peer in one.workers()] == [two[1].key.peer]
    two[0].say(PeerState.LOST)
    assert [peer.peer for peer in roster.workers()] == [two[1].key.peer], "only one is there"


async def test_a_member_that_may_not_lend_keeps_no_name_from_a_worker() -> None:
    net = Net(Owner())
    head, garage = net.mesh("head", "serve"), net.mesh("garage")
    net.mesh("garage", roles=frozenset({Role.USE}), seed="other")
    roster = Roster(head, replace(PLAIN, min_workers=1, workers=("garage",)))
    assert [peer.peer for peer in roster.workers()] == [garage.key.peer]


async def test_only_those_that_the_user_names_are_asked() -> None:
    it = Scene(least=1, only=("good",))
    assert it.asked() == ["good"]
    assert "bad is not named by `--workers`" in it.roster.left_out()
    assert [peer.name for peer in it.roster.wanted()] == ["good"]
    it = Scene(least=3)
    beginning = str(it.status("bad").peer)[:12]
    it = Scene(least=1, only=(beginning, "nobody"))
    assert it.asked() == ["bad"], "the same keys in each scene"
    assert it.roster.left_out()[0] == ("no worker is called `nobody` (known: `bad`, `good`, `worse`)")


class Ready:
    """Five workers, of which `x` and `y` are for losses; the model is ready on some of the others."""

    def __init__(self, *, least: int = 1, only: tuple[str, ...] = ()) -> None:
        net = Net(Owner())
        head = net.mesh("head", "serve")
        self.meshes = {name: net.mesh(name) for name in "abcxy"}
        self.roster = Roster(head, replace(PLAIN, min_workers=least, workers=only, standby=("y", "x")))

    def runs_on(self, names: str) -> None:
        self.roster.ran_on([self.meshes[name].key.peer for name in names])

    def asked(self) -> str:
        return "".join(peer.name for peer in self.roster.workers())


async def test_standby_workers_that_nobody_knows_are_named() -> None:
    """A mistyped name would be found on the day of the loss."""
    it = Scene(least=1, standby=("bad", "nobody"))
    assert it.roster.unknown_names() == ["no worker is called `nobody` (known: `bad`, `good`, `worse`)"]


async def test_standby_workers_take_the_places_of_those_that_are_lost() -> None:
    it = Ready()
    assert it.asked() == "abc" and [peer.name for peer in it.roster.standby()] == ["y", "x"]
    it.runs_on("ab")
    assert it.asked() == "abc" and not it.roster.left_out()
    it.meshes["c"].say(PeerState.LOST)
    assert it.asked() == "ab", "it was not used"
    it.meshes["b"].say(PeerState.LOST)
    assert it.asked() == "ay", "as many as are lost, in the user's order"
    it.runs_on("ay")
    assert it.asked() == "ay"
    it.meshes["a"].paused = True
    assert it.asked() == "yx"
    it.meshes["y"].say(PeerState.LOST)
    assert it.asked() == "x"
    it.meshes["a"].paused = False
    it.meshes["b"].say(PeerState.CONNECTED)
    assert it.asked() == "ab", "all are back"


def seen(roster: Roster) -> dict[str, str]:
    """Return why a worker is not asked, by name; `excluded`: not even if the model cannot run otherwise."""
    return {
        one.peer.name: f"excluded: {one.excluded}" if one.excluded else one.spared
        for one in roster.candidates()
    }


async def test_one_that_fetches_is_not_called_paused() -> None:
    it = Ready()
    it.meshes["b"].paused = it.meshes["b"].fetching = True
    assert seen(it.roster)["b"] == "excluded: b is fetching a model"


async def test_a_plan_sees_whom_the_head_would_ask_and_why_it_asks_no_others() -> None:
    it = Ready()
    it.meshes["b"].paused = True
    it.runs_on("ac")
    assert seen(it.roster) == {
        "a": "",
        "b": "excluded: b is paused (`meshd resume` there ends that)",
        "c": "",
        "x": FOR_LOSSES,
        "y": FOR_LOSSES,
    }
    it.meshes["c"].say(PeerState.LOST)
    assert seen(it.roster)["y"] == "" and seen(it.roster)["x"] == FOR_LOSSES
    others = seen(it.roster.naming(replace(PLAIN, workers=("b", "x"))))
    assert others["a"] == "excluded: a is not named by `--workers`"
    assert others["b"].startswith("excluded: b is paused") and others["x"] == ""
    assert others["y"] == FOR_LOSSES, "the lost one is not to take part"
    assert seen(it.roster.naming(replace(PLAIN, workers=("a", "c"))))["y"] == ""
    unsteady = Scene(least=1)
    left = seen(unsteady.roster.naming(PLAIN))
    assert left["good"] == "" and left["bad"].startswith("worker bad is left out for 60 s: it failed")


async def test_a_plan_over_a_worker_for_losses_takes_it_as_one_of_the_workers() -> None:
    it = Ready()
    it.runs_on("ab")
    by_name = it.roster.naming(replace(PLAIN, workers=("a", "x")))
    assert [peer.name for peer in by_name.workers()] == ["a", "x"]
    by_id = it.roster.naming(replace(PLAIN, workers=("b", it.meshes["y"].key.peer.short)))
    assert seen(by_id) == {
        "a": "excluded: a is not named by `--workers`",
        "b": "",
        "c": "excluded: c is not named by `--workers`",
        "x": FOR_LOSSES,
        "y": "",
    }


async def test_a_plan_for_layers_says_by_what_its_workers_are_named() -> None:
    it = Ready()
    layers = LayerRange("a", 0, 3), LayerRange("b", 4, 9)
    others = seen(it.roster.naming(replace(PLAIN, layers=layers, workers=("a", "b"))))
    assert others["c"] == "excluded: c is not named by `--layers`"


async def test_those_that_are_missed_are_named() -> None:
    it = Ready()
    it.runs_on("ab")
    assert it.roster.why_waiting("no room") == "waiting for workers or memory: no room"
    it.meshes["c"].say(PeerState.LOST)
    it.meshes["a"].say(PeerState.LOST)
    assert it.roster.why_waiting("no room") == "waiting for a to come back: no room"
    it.meshes["b"].paused = True
    said = it.roster.why_waiting("no room")
    assert said.startswith("waiting for a, b to come back: no room; b is paused (`meshd resume`")


async def test_a_loss_that_was_borne_without_them_is_over() -> None:
    it = Ready()
    it.runs_on("abc")
    for name in "cxy":
        it.meshes[name].say(PeerState.LOST)
    it.runs_on("ab")
    it.meshes["x"].say(PeerState.CONNECTED)
    assert it.asked() == "ab"


async def test_they_are_no_workers_until_the_model_does_not_fit_without() -> None:
    it = Ready(least=4)
    assert it.asked() == "abc" and len(it.roster.wanted()) == 3, "too few: they are waited for"
    assert it.roster.spares()
    it.roster.all_needed = True
    assert it.asked() == "abcyx"


async def test_they_need_not_be_named_among_the_workers() -> None:
    it = Ready(only=("a", "b"))
    it.runs_on("ab")
    it.meshes["b"].say(PeerState.LOST)
    assert it.asked() == "ay"


async def test_an_unsteady_worker_is_replaced_as_if_it_were_lost() -> None:
    it = Ready()
    it.runs_on("ab")
    now = asyncio.get_running_loop().time()
    peer = next(peer for peer in it.roster.connected() if peer.name == "b")
    for _ in range(ENDS):
        it.roster.backoff.ended(peer, "it went", now, lasted=1.0)
    assert it.asked() == "acy"


NONE_READY = "waiting for workers: 0 of 1 ready, as demanded by `--min-workers 1`"


async def test_only_those_that_can_be_asked_count_and_the_others_are_named_with_their_reasons() -> None:
    net = Net(Owner())
    head = net.mesh("head", "serve")
    roster = Roster(head, replace(PLAIN, min_workers=1))
    assert roster.why_too_few() == NONE_READY
    garage = net.mesh("garage")
    garage.paused = True
    why = f"{NONE_READY}; garage is paused (`meshd resume` there ends that)"
    assert roster.why_too_few() == why
    garage.paused = False
    garage.say(PeerState.LOST)
    assert roster.why_too_few() == f"{NONE_READY}; garage is not connected"
    net.mesh("barn")
    fixed = Roster(
        head, replace(PLAIN, min_workers=1, workers=("garage",), layers=(LayerRange("garage", 0, 29),))
    )
    assert fixed.why_too_few().split("; ") == [
        "waiting for workers: 0 of 1 ready, as demanded by `--layers`",
        "barn is not named by `--layers`",
        "garage, named by `--layers`, is not connected",
    ]


@pytest.mark.parametrize(
    ("options", "demand"),
    [
        (replace(PLAIN, min_workers=2, split="auto"), "1 of 2 ready, as demanded by `--min-workers 2`"),
        (
            replace(PLAIN, min_workers=2, layers=(LayerRange("barn", 0, 3),)),
            "1 of 2 ready, as demanded by `--layers`",
        ),
        (PLAIN, "0 of 1 ready, as demanded by `--split always` without `--min-workers 0`"),
        (
            replace(PLAIN, rpc=(HostPort("b", 1),)),
            "0 of 1 ready, as demanded by `--rpc` without `--min-workers 0`",
        ),
        (replace(PLAIN, tensor_split=(1.0, 1.0)), "0 of 1 ready, as demanded by `--tensor-split`"),
        (replace(PLAIN, split="auto", devices=("none",)), "0 of 1 ready, as demanded by `--device none`"),
    ],
)
async def test_the_option_that_demands_workers_is_named(options: HeadOptions, demand: str) -> None:
    net = Net(Owner())
    head = net.mesh("head", "serve")
    if demand.startswith("1"):
        net.mesh("barn")
    for roster in (Roster(head, options), Roster(head, replace(PLAIN, min_workers=0)).naming(options)):
        assert roster.why_too_few() == f"waiting for workers: {demand}"
