"""Every service of the daemon has a way in for the hostile member, at which it is answered."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest
from meshd.wire.models import MODELS_SERVICE

from tests.hostile import scene
from tests.hostile.asking import WAYS
from tests.hostile.doors import ANSWERING, SIGNS
from tests.hostile.draw import drawn_seed
from tests.hostile.run import run_member
from tests.rules.source import ROOT

MESSAGES = 10_000  # with 2500, some seeds left a way of a service out


def _trees() -> list[ast.Module]:
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(ROOT, "meshd").rglob("*.py"))]
    return [ast.parse(source) for source in sources if "SERVICE" in source or ".handle(" in source]


def stream_services(trees: Iterable[ast.Module]) -> tuple[set[str], set[str]]:
    """Return the names of all services (constants `SERVICE` or `…_SERVICE`), and the first arguments of calls
    of `handle` that are none of these constants."""
    names: dict[str, str] = {}
    handled: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                    if name.endswith("SERVICE"):
                        names[name] = value
                case ast.Call(func=ast.Attribute(attr="handle"), args=[first, *_], keywords=keywords):
                    if any(one.arg == "allow" for one in keywords):
                        handled.add(ast.unparse(first))
    return set(names.values()), handled - names.keys()


def _without_door(services: set[str]) -> set[str]:
    return services - {sign for signs in SIGNS.values() for sign in signs}


def test_every_service_has_a_door() -> None:
    services, nameless = stream_services(_trees())
    assert not nameless, "a service must be named by a constant"
    assert set(ANSWERING) <= services
    assert not _without_door(services)


def test_a_new_service_without_a_door_is_found() -> None:
    fresh = ast.parse("FRESH_SERVICE = 'fresh'\nmesh.handle(FRESH_SERVICE, serve, allow=admit)")
    services, nameless = stream_services([*_trees(), fresh])
    assert _without_door(services) == {"fresh"} and not nameless
    _, nameless = stream_services([ast.parse("mesh.handle('fresh', serve, allow=admit)")])
    assert nameless == {"'fresh'"}


def test_every_service_is_asked_in_every_way_and_answers(tmp_path: Path) -> None:
    done = run_member(tmp_path, seed=drawn_seed(), messages=MESSAGES, doors=ANSWERING)
    assert not done.unheard
    assert {f"{service}.{way}" for service in ANSWERING for way in WAYS} <= set(done.sent)


def test_a_service_that_no_honest_node_has_is_not_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scene.Victim.start

    def start(victim: scene.Victim, *words: object) -> None:
        del victim.node.node.services[MODELS_SERVICE]
        real(victim, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(scene.Victim, "start", start)
    done = run_member(tmp_path, seed=drawn_seed(), messages=200, doors=("models",))
    assert done.unheard == ("models",)
