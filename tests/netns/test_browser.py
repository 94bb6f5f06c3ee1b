"""A real Chromium behind a NAT reaches a node behind another one, with nothing but an invite for a browser.

The page is a file, bundled from wheels/mesh/src/remote with the esbuild of the mesh page's build.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.browser import CHROMIUM, needs_chromium
from tests.netns.agent import Settings, agent
from tests.netns.programs import ROOT, relay_on, stun_on
from tests.netns.sites import Kind, site
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World
from tests.page_scripts import package_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAME = "relay.test"
MESH_PAGE = ROOT / "wheels" / "mesh"
BUNDLER = package_file(".bin/esbuild")
CUT_SECONDS = 10.0
NEAR_LINE = Line.both(Way(delay_ms=10))
pytestmark = [
    needs_chromium,
    pytest.mark.skipif(BUNDLER is None, reason="needs `make chat`, which fetches the page's packages"),
]
ENTRY = """
import { connect } from "./src/remote/signalling.ts";
import { newSeed, readInvite } from "./src/remote/invite.ts";
globalThis.reach = async (token) => {
  const began = performance.now();
  globalThis.channel = await connect(readInvite(token, newSeed()), new AbortController().signal);
  return { kind: channel.kind, seconds: (performance.now() - began) / 1000 };
};
globalThis.text = (word) => new TextEncoder().encode(word);
globalThis.ask = (word) => new Promise((resolve) => {
  channel.onmessage = (message) => resolve(new TextDecoder().decode(message));
  channel.send(text(word));
});
globalThis.down = (count) => new Promise((resolve) => {
  const began = performance.now();
  let left = count;
  channel.onmessage = (message) => {
    if (--left === 0) resolve(count * message.length / 1e3 / (performance.now() - began));
  };
  channel.send(text(`down ${count}`));
});
globalThis.ticks = [];
globalThis.tick = (count) => {
  channel.onmessage = (message) => ticks.push(Number(new TextDecoder().decode(message)));
  channel.onclose = () => ticks.push(-1);
  channel.send(text(`tick ${count}`));
};
"""


def page_file(folder: Path) -> Path:
    """The page and its script in one file, as somebody would save it."""
    entry = MESH_PAGE / "remote_entry_of_a_test.ts"
    assert BUNDLER is not None
    packages = BUNDLER.parents[1]
    bundled = subprocess.run(
        [BUNDLER, "--bundle", "--format=iife", "--loader=ts", f"--sourcefile={entry}"],
        input=ENTRY.encode(),
        cwd=MESH_PAGE,
        env={**os.environ, "NODE_PATH": str(packages)},
        check=True,
        capture_output=True,
    )
    page = folder / "page.html"
    page.write_text(f"<!doctype html><title>a page</title><script>{bundled.stdout.decode()}</script>")
    return page


@contextmanager
def chromium_at(host: Host, folder: Path) -> Iterator["Page"]:
    """A page in a Chromium that runs in the host's namespace."""
    from playwright.sync_api import sync_playwright

    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(host.space.prefix)} {CHROMIUM} "$@"\n')
    program.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
        )
        try:
            page = browser.new_page()
            page.goto(page_file(folder).as_uri())
            yield page
        finally:
            browser.close()


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        (Kind.PORT_RESTRICTED, {"webrtc"}),
        (Kind.SYMMETRIC_RANDOM, {"webrtc", "relay"}),
        (Kind.NO_UDP, {"relay"}),
    ],
)
def test_a_browser_behind_a_nat_reaches_a_node_and_its_stream_survives_a_cut(
    world: World, tmp_path: Path, kind: Kind, ways: set[str], record_property: Callable[[str, object], None]
) -> None:
    server = world.public("relay")
    world.name(NAME, server)
    home = site(world, Kind.PORT_RESTRICTED, "home").host
    away = site(world, kind, "away", line=NEAR_LINE)
    assert away.router is not None and away.router.wan is not None
    with (
        relay_on(server, tmp_path / "relay", name=NAME) as url,
        stun_on(world.public("stun")) as stun,
        agent(home.space, tmp_path / "head", Settings(name="head", relays=(url,), stun=stun[:1])) as head,
        chromium_at(away.host, tmp_path) as page,
    ):
        token = head.ask("browser")["token"]
        reached = page.evaluate("token => reach(token)", token)
        assert reached["kind"] in ways
        assert page.evaluate("ask('hello')") == "hello"
        speed = page.evaluate("down(300)")
        figures = f"{kind}: {reached['kind']} after {reached['seconds']:.1f} s, {speed:.1f} MB/s"
        record_property("figures", figures)  # shown by `--junitxml=FILE -o junit_family=legacy`
        # A stream of numbers, ten a second for 20 s, while the cable is out for ten.
        page.evaluate("tick(200)")
        page.wait_for_function("ticks.length > 20")
        away.router.wan.cable_out(CUT_SECONDS)
        page.wait_for_function("ticks.length >= 200 || ticks.includes(-1)", timeout=60_000)
        assert page.evaluate("ticks") == list(range(200))
