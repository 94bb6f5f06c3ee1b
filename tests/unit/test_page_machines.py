"""What the page makes of states: the machines, their places in the picture, and what flows between them."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from meshd.admin.request import Json
from meshd.admin.status import PeerView, Status
from meshd.admin.status_json import for_scripts
from meshd.identity import naming
from meshd.model.status import ModelState, SplitPart, WorkerWeights

from tests.page_scripts import needs_typescript, page_script
from tests.process import mesh_page_states as states
from tests.process.mesh_page_states import link, model, peer, status

pytestmark = [needs_typescript, pytest.mark.timeout(180)]
WIDTHS = (546, 700, 941, 942, 1000, 1600)
_SCRIPT = """
import { readFileSync } from 'node:fs';
import { flowsBetween, isFlowing } from './flow.js';
import { HEIGHT, LEAST_WIDTH, ROW, layout } from './machines/picture.js';
import { machinesOf, modelsOf, nodeState, partsText, pathText } from './machines/machines.js';
const shown = (machine) => ({ ...machine, parted: partsText(machine.parts), way: pathText(machine) });
const DO = {
    machines: (all) => all.map((status) => machinesOf(status).map(shown)),
    models: (status) => modelsOf(status).map((model) => model.name),
    node: (status) => nodeState(status),
    layouts: (asked) => asked.map(([count, width]) => layout(count, width)),
    sizes: () => ({ HEIGHT, LEAST_WIDTH, ROW }),
    flows: ([before, after, seconds]) => {
        const found = flowsBetween(before, after, seconds);
        for (const flow of Object.values(found)) flow.flows = isFlowing(flow);
        return found;
    },
    silence: () => isFlowing(undefined)
};
const [name, given] = JSON.parse(readFileSync(0, 'utf-8'));
console.log(JSON.stringify(DO[name](given)));
"""


def ask(name: str, given: object = None) -> Any:
    """What the page's function returns, after JSON."""
    return page_script(_SCRIPT, [name, given])


def all_machines(found: Sequence[Status]) -> list[list[dict[str, Any]]]:
    rows: list[list[dict[str, Any]]] = ask("machines", [for_scripts(status) for status in found])
    return rows


def machines(found: Status) -> list[dict[str, Any]]:
    [rows] = all_machines([found])
    return rows


def by_name(found: Status) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in machines(found)}


# --- machines ---------------------------------------------------------------------------------------------


def test_this_node_comes_first_then_connected_ones_then_troubled_ones_then_those_that_are_away() -> None:
    peers = [
        peer("gone", None, number=1),
        replace(peer("lost", None, number=2), state="lost", state_s=5.0),
        peer("near", "lan", number=3),
        peer("far", "relayed", number=4),
    ]
    rows = machines(status(peers))
    assert [row["name"] for row in rows] == ["desk", "near", "far", "lost", "gone"]
    assert [row["isHere"] for row in rows] == [True, False, False, False, False]


NEW = replace(peer("attic"), state_s=5.0)  # in its state
STATES: Sequence[tuple[Mapping[str, Any], str, str]] = (
    ({}, "good", "connected"),
    ({"paused": True}, "paused", "paused"),
    ({"paused": True, "draining": True}, "busy", "draining"),
    ({"fetching": True, "paused": True}, "busy", "fetching a model"),
    ({"says_banned": "you are banned"}, "bad", "has banned this node"),
    ({"says_in_use": "copied"}, "bad", "identity in use elsewhere"),
    ({"state": "suspended"}, "bad", "interrupted"),
    ({"state": "connecting"}, "busy", "connecting"),
    ({"state": "lost"}, "bad", "lost"),
    ({"state": "known"}, "off", "not connected"),
    ({"state": "known", "present": True}, "off", "running, not connected"),
    ({"state": "lost", "stopped": "it was switched off"}, "off", "stopped"),
    ({"state": "lost", "state_s": 600.0}, "off", "away"),
)


def test_the_state_of_a_peer_in_a_sign_and_a_word() -> None:
    found = all_machines([status([replace(NEW, **changes)]) for changes, _, _ in STATES])
    assert [(row["sign"], row["word"]) for _, row in found] == [(sign, word) for _, sign, word in STATES]


def test_the_reason_is_the_first_that_explains_the_state() -> None:
    reasons = {
        "says_banned": "banned",
        "says_in_use": "in use",
        "upgrade": "upgrade it",
        "stopped": "stopped",
        "last_error": "no route",
    }
    away = replace(NEW, state="lost", link=None)
    peers = [replace(away, **dict(list(reasons.items())[at:])) for at in range(len(reasons))]  # type: ignore[arg-type]  # all are texts
    found = [row["reason"] for _, row in all_machines([status([changed]) for changed in peers])]
    assert found == list(reasons.values())


PATHS: Mapping[Any, tuple[str, str]] = {
    "lan": ("direct", "LAN, 1.20 ms"),
    "loopback": ("direct", "same machine, 1.20 ms"),
    "mapped": ("direct", "mapped port, 1.20 ms"),
    "punched": ("punched", "punched, 1.20 ms"),
    "relayed": ("relayed", "relayed, 1.20 ms"),
    None: ("none", ""),
}


def test_a_path_is_a_line_and_words() -> None:
    found = all_machines([status([peer("attic", path)]) for path in PATHS])
    assert [(row["line"], row["way"]) for _, row in found] == list(PATHS.values())


def test_a_path_that_was_not_timed_yet_has_no_time() -> None:
    assert by_name(status([peer("attic", "lan", rtt_ms=None)]))["attic"]["way"] == "LAN"


def test_this_node_says_what_matters_most() -> None:
    """Paused before fetching before the model before the API."""
    ready = model(ModelState.READY)
    found = replace(status(), model=ready)
    assert ask("node", for_scripts(found)) == ["good", "ready", ""]
    assert ask("node", for_scripts(status()))[:2] == ["good", "ready"]
    assert ask("node", for_scripts(replace(status(), api=None)))[:2] == ["good", "running"]
    waiting = replace(found, model=model(ModelState.WAITING, "one more worker is needed"))
    assert ask("node", for_scripts(waiting)) == ["busy", "waiting", "one more worker is needed"]
    fetching = json.loads(json.dumps(states.fetching()["status"]))
    assert ask("node", fetching)[:2] == ["busy", "fetching a model"]
    fetching["node"]["paused"] = True
    assert ask("node", fetching)[:2] == ["paused", "paused"]
    for models, requests, said in (
        (1, 0, "1 model still uses this node until the running answers end."),
        (0, 2, "2 requests still under way."),
    ):
        fetching["node"]["draining"] = {"models": models, "requests": requests}
        assert ask("node", fetching) == ["busy", "draining", said]


def test_every_state_of_a_model_has_a_sign_and_a_word() -> None:
    found = all_machines([replace(status(), model=model(state)) for state in ModelState])
    for state, (row,) in zip(ModelState, found, strict=True):
        assert row["sign"] in {"good", "busy", "bad", "off"} and row["word"], state


def test_several_models_are_shown_in_place_of_the_one() -> None:
    first, two = model(ModelState.READY), replace(model(ModelState.UNLOADED), name="other")
    assert ask("models", for_scripts(status())) == []
    assert ask("models", for_scripts(replace(status(), model=first))) == [first.name]
    assert ask("models", for_scripts(replace(status(), model=first, models=(two, first)))) == [
        "other",
        first.name,
    ]


def test_the_parts_of_a_machine_are_summed_by_model() -> None:
    split = [
        SplitPart("attic", "CUDA0", 3, 30),
        SplitPart("attic", "CUDA1", 4, 40),
        SplitPart("desk", "CPU", 1, 10),
    ]
    draft = replace(model(ModelState.READY, split=[SplitPart("attic", "CPU", 2, 20)]), name="draft")
    found = replace(status([peer("attic")]), models=(model(ModelState.READY, split=split), draft))
    rows = by_name(found)
    assert rows["attic"]["parts"] == [
        {"model": "qwen3-14b-q4", "layers": 7, "bytes": 70},
        {"model": "draft", "layers": 2, "bytes": 20},
    ]
    assert rows["attic"]["parted"] == "7 layers of qwen3-14b-q4, 2 layers of draft"
    assert rows["desk"]["parted"] == "1 layer of qwen3-14b-q4"


def test_by_tensors_a_machine_has_a_share_of_each_layer() -> None:
    split = [SplitPart("attic", "CPU", 3, 30), SplitPart("desk", "CPU", 1, 10)]
    together = replace(model(ModelState.READY, split=split), by_tensors=True)
    rows = by_name(replace(status([peer("attic")]), model=together))
    assert rows["attic"]["parted"] == "75% of each layer of qwen3-14b-q4"
    assert rows["desk"]["parted"] == "25% of each layer of qwen3-14b-q4"


def test_how_far_the_weights_of_a_machine_are() -> None:
    shares = {(0, 0): 0.0, (25, 25): 0.5, (90, 90): 1.0}
    loads = [
        replace(
            model(ModelState.LOADING),
            workers=(WorkerWeights("attic", 100, here, 100, sent), WorkerWeights("barn", 0, 0, 0, 0)),
        )
        for here, sent in shares
    ]
    both = status([peer("attic"), peer("barn", number=2)])
    found = all_machines([replace(both, model=load) for load in loads])
    assert [rows[1]["loading"] for rows in found] == list(shares.values())
    assert [rows[2]["loading"] for rows in found] == [None] * 3, "it has nothing to load"
    assert machines(replace(both, model=replace(loads[0], state=ModelState.READY)))[1]["loading"] is None


def called(found: Status, workers: Sequence[PeerView]) -> dict[str, str]:
    """The labels that the head gives its machines when it loads."""
    names = {found.node.id: found.node.name} | {worker.id: worker.name for worker in workers}
    return naming.labels(names)


def test_each_part_of_a_split_is_found_at_the_machine_that_has_it() -> None:
    """Also where names repeat; the layers of a machine are its number."""
    some = [
        names for count in range(4) for names in itertools.product(("desk", "attic", "barn"), repeat=count)
    ]
    asked: list[tuple[Status, dict[str, int]]] = []
    for workers, clients in itertools.product(some, some[:4]):
        lent = [peer(name, number=at) for at, name in enumerate(workers)]
        others = [replace(peer(name, number=at), role="client") for at, name in enumerate(clients, len(lent))]
        labels = called(found := status([*lent, *others]), lent)
        layers = {node: number for number, node in enumerate(labels, start=1)}
        split = [SplitPart(label, "CPU", layers[node], 1) for node, label in labels.items()]
        shown = replace(found, model=model(ModelState.READY, split=split))
        asked.append((shown, {other.id: 0 for other in others} | layers))
    for rows, (_, wanted) in zip(all_machines([shown for shown, _ in asked]), asked, strict=True):
        assert {row["id"]: sum(part["layers"] for part in row["parts"]) for row in rows} == wanted


def test_a_worker_that_comes_later_with_the_same_name_takes_no_layers() -> None:
    first, second = peer("desk", number=1), peer("attic", number=2)
    split = [SplitPart("desk", "CPU", 5, 1), SplitPart("attic", "CPU", 6, 1)]
    found = replace(status([first, second]), model=model(ModelState.READY, split=split))
    had = {row["id"]: row["parted"] for row in machines(found)}
    assert had[first.id] == "" and had[found.node.id].startswith("5 layers"), "this node was there first"
    assert had[second.id].startswith("6 layers")


def test_names_that_repeat_are_shown_with_the_begin_of_the_id_and_empty_ones_too() -> None:
    twins = [peer("attic", number=1), peer("attic", number=2), peer("", number=3)]
    shown = {row["id"]: row["name"] for row in machines(status(twins))}
    assert [shown[first.id] for first in twins[:2]] == [f"attic ({first.id[:10]})" for first in twins[:2]]
    assert shown[twins[2].id] == f"({twins[2].id[:10]})"


# --- the picture ------------------------------------------------------------------------------------------


def test_no_box_line_or_label_is_on_another() -> None:
    sizes = ask("sizes")
    assert sizes["LEAST_WIDTH"] == WIDTHS[0]
    asked = [(count, width) for count in range(31) for width in WIDTHS]
    for (count, width), found in zip(asked, ask("layouts", asked), strict=True):
        spots = found["peers"]
        boxes = [found["here"], *(spot["box"] for spot in spots)]
        assert len(spots) == count
        for box in boxes:
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, (count, width)
            assert box["y"] >= 0 and box["y"] + sizes["HEIGHT"] <= found["height"], (count, width)
            assert box["width"] >= 150, "room for a name"
        for first, two in itertools.combinations(boxes, 2):
            beside = first["x"] + first["width"] <= two["x"] or two["x"] + two["width"] <= first["x"]
            assert beside or abs(first["y"] - two["y"]) >= sizes["ROW"], (count, width)
        for spot in spots:
            check_line(spot, found["here"], sizes["HEIGHT"])


def check_line(spot: Mapping[str, Any], here: Mapping[str, Any], height: int) -> None:
    """It goes from this node's edge to the peer's, level at the peer; its label is between the two."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", spot["line"])]
    begin, end = (numbers[0], numbers[1]), (numbers[-2], numbers[-1])
    box, is_right = spot["box"], spot["box"]["x"] > here["x"]
    assert begin == (here["x"] + (here["width"] if is_right else 0), here["y"] + height / 2)
    assert end == (box["x"] + (0 if is_right else box["width"]), box["y"] + height / 2)
    bend = numbers[6]
    assert numbers[7] == end[1] == spot["labelY"]
    assert spot["labelX"] == (bend + end[0]) / 2
    assert abs(end[0] - bend) >= 190, "room for the label"


def test_both_sides_are_used_where_there_are_many_and_room() -> None:
    wide, few, narrow = ask("layouts", [(7, 1000), (4, 1000), (7, 800)])
    assert [spot["box"]["x"] < wide["here"]["x"] for spot in wide["peers"]].count(True) == 3
    for found in (few, narrow):
        assert all(spot["box"]["x"] > found["here"]["x"] for spot in found["peers"])


# --- what flows -------------------------------------------------------------------------------------------


def flows(before: Json, after: Json, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = ask("flows", [before, after, seconds])
    return found


def state(*peers: PeerView) -> Json:
    return {"status": for_scripts(status(peers))}


def test_what_flows_is_the_difference_of_two_states_by_time() -> None:
    first, moved = peer("attic", "lan", number=1), peer("attic", "lan", number=1, moved=30_000)
    assert flows(state(first), state(moved), 2.0) == {
        first.id: {"sent": 15_000, "received": 5_000, "flows": True}
    }
    assert flows(state(first), state(first), 2.0) == {first.id: {"sent": 0, "received": 0, "flows": False}}
    kept_open = peer("attic", "lan", number=1, moved=3_000)
    assert not flows(state(first), state(kept_open), 2.0)[first.id]["flows"]
    assert ask("silence") is False


def test_without_two_states_of_one_link_nothing_is_known() -> None:
    first = peer("attic", "lan", number=1)
    moved = replace(first, link=link("lan", moved=10**6))
    assert flows(None, state(moved), 1.0) == {}
    assert flows(state(first), state(moved), 0.0) == {}
    assert flows(state(first), state(moved), -1.0) == {}
    assert flows(state(), state(moved), 1.0) == {}, "a new peer"
    assert flows(state(first), state(peer("attic", None, number=1)), 1.0) == {}, "no link"
    newer = replace(link("lan", moved=10**6), since=states.NOW)
    assert flows(state(first), state(replace(first, link=newer)), 1.0) == {}, "another connection"
    other = replace(link("punched", moved=10**6), since=states.NOW - 600)
    assert flows(state(first), state(replace(first, link=other)), 1.0) == {}, "another kind of link"


def test_counters_that_begin_anew_flow_backwards_for_nobody() -> None:
    before, after = peer("attic", "lan", number=1, moved=10**6), peer("attic", "lan", number=1)
    found = flows(state(before), state(after), 1.0)[before.id]
    assert (found["sent"], found["received"]) == (0, 0)
