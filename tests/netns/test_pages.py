"""The pages of docs/ that lead through a task are followed as they stand, on machines of the bench."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.models import cache_folder, smollm2
from tests.netns.nat import Nat
from tests.netns.programs import stun_on
from tests.netns.walkthrough import Machine, Walkthrough
from tests.netns.world import Host, World
from tests.rules.source import ROOT
from tests.unit.library.models import in_ollama

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]


BENCH = {"qwen3-4b": str(smollm2()), "Qwen3-4B-Q4_K_M": smollm2().stem}


def machine(name: str, host: Host, folder: Path) -> Machine:
    """A computer of that name, where meshd is installed and nothing has been done yet."""
    home, cache = folder / name, folder / f"{name}-cache"
    home.mkdir()
    cache.mkdir()
    (cache / "native").symlink_to(cache_folder() / "native")
    named = ("unshare", "--uts", "--", "sh", "-c", 'hostname "$0" && exec "$@"', name)
    found = f"{ROOT / '.venv/bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    variables = {"HOME": str(home), "PATH": found, "MESHD_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    return Machine((*host.space.prefix, *named), home, variables)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@contextmanager
def internet(world: World) -> Iterator[None]:
    """Let the servers answer that tell a node its public address."""
    server = world.public("stun")
    for name in ("stun.cloudflare.com", "stun.l.google.com"):
        world.name(name, server)
    with stun_on(server):
        yield


def test_the_tutorial(world: World, tmp_path: Path) -> None:
    pc = machine("pc", world.router("home").host("pc"), tmp_path)
    here = {"/tmp/": f"{tmp_path}/", "smollm2": str(smollm2())}
    with internet(world), Walkthrough({"pc": pc}, here) as reader:
        reader.follow(page("quickstart.md"))
        reader.end()


def test_two_pcs_at_home(world: World, tmp_path: Path) -> None:
    lan = world.router("home")
    machines = {name: machine(name, lan.host(name), tmp_path) for name in ("garage", "desk", "attic")}
    with Walkthrough(machines, BENCH) as reader:
        reader.follow(page("at-home.md"))
        reader.end()


def test_a_friend_across_the_internet(world: World, tmp_path: Path) -> None:
    hosts = {name: world.router(f"at-{name}").host(name) for name in ("anna", "ben")}
    machines = {name: machine(name, host, tmp_path) for name, host in hosts.items()}
    with internet(world), Walkthrough(machines, BENCH) as reader:
        reader.follow(page("friend.md"))
        reader.end()


def test_a_relay_on_a_small_server(world: World, tmp_path: Path) -> None:
    hosts = {name: world.router(f"at-{name}", Nat.SYMMETRIC_RANDOM).host(name) for name in ("garage", "desk")}
    hosts["server"] = world.public("server")
    world.name("relay.example.org", hosts["server"])
    machines = {name: machine(name, host, tmp_path) for name, host in hosts.items()}
    with Walkthrough(machines, BENCH) as reader:
        reader.follow(page("relay-server.md"))
        reader.end()


def test_agents_and_other_clients(world: World, tmp_path: Path) -> None:
    lan = world.router("home")
    machines = {name: machine(name, lan.host(name), tmp_path) for name in ("desk", "laptop")}
    with Walkthrough(machines, BENCH | {'model="qwen3-4b"': f'model="{smollm2().stem}"'}) as reader:
        reader.follow(page("agents.md"))
        reader.end()


def test_coming_from_ollama(world: World, tmp_path: Path) -> None:
    pc = machine("pc", world.router("home").host("pc"), tmp_path)
    in_ollama(pc.folder / ".ollama/models", "registry.ollama.ai/library/qwen3/4b", smollm2().read_bytes())
    with Walkthrough({"pc": pc}, {}) as reader:
        reader.follow(page("coming-from.md"))
        reader.end()
