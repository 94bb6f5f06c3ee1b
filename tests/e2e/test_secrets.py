"""Secrets of running nodes: they are in no command line, no child's environment, no log, answer or status.

A worker, a head with API keys, a client and a relay run with all that they can log while one answer is made
and others are refused; then all that another user, or a reader of a bug report, may see is searched.
"""

import asyncio
import base64
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.identity.invite import RelayHint, parse_token, relay_url
from meshd.identity.keystore import Home

from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, descendants, play
from tests.process.relay_process import Relay

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc"),
]

API_KEY = "sk-planted-api-key-0123456789abcdef"
HUB_TOKEN = "hf_plantedhubtoken0123456789"
VERBOSE = ("--log-level", "debug")


def spelled(raw: bytes) -> Iterator[bytes]:
    """The ways in which bytes are written: as they are, in hex, base64 and base32."""
    yield raw
    yield raw.hex().encode()
    yield base64.b64encode(raw).rstrip(b"=")
    yield base64.urlsafe_b64encode(raw).rstrip(b"=")
    yield base64.b32encode(raw).rstrip(b"=")
    yield base64.b32encode(raw).rstrip(b"=").lower()


def planted(token: str, homes: list[Path]) -> Mapping[bytes, str]:
    """Return every secret of these nodes in each spelling, and what it is."""
    found = {
        token.encode(): "the token",
        API_KEY.encode(): "the API key",
        HUB_TOKEN.encode(): "the hub's token",
    }
    raw = {"the token's secret": parse_token(token).secret}
    for home in homes:
        store = Home(home)
        raw[f"the key of {home.name}"] = store.load_or_create_identity().seed
        membership = store.load_membership()
        if membership is not None and membership.root_seed is not None:
            raw["the root key"] = membership.root_seed
    assert "the root key" in raw
    return found | {text: what for what, seed in raw.items() for text in spelled(seed)}


def leaks(secrets: Mapping[bytes, str], places: Mapping[str, bytes]) -> list[str]:
    """Say which secret stands where."""
    return sorted(
        {
            f"{what} in {place}"
            for place, data in places.items()
            for text, what in secrets.items()
            if text in data
        }
    )


def processes(pid: int, name: str) -> dict[str, bytes]:
    """Command lines of a daemon and all its children, and the environments of the children."""
    seen = {f"the command line of {name}": Path(f"/proc/{pid}/cmdline").read_bytes()}
    for child in descendants(pid):
        try:
            said = Path(f"/proc/{child}/cmdline").read_bytes()
            seen[f"the command line of a child of {name}: {said[:60]!r}"] = said
            environ = Path(f"/proc/{child}/environ").read_bytes()
            seen[f"the environment of a child of {name}: {said[:60]!r}"] = environ
        except OSError:
            continue  # it has ended
    return seen


def environment(node: LocalNode) -> dict[str, bytes]:
    """Return what the node itself was given, with its token: only its own user can read it."""
    return {"it": Path(f"/proc/{node.pid}/environ").read_bytes()}


def logs(folder: Path) -> dict[str, bytes]:
    """All log files below a home."""
    return {f"the log {file}": file.read_bytes() for file in folder.rglob("*.log*") if file.is_file()}


async def shown(node: LocalNode, token: str) -> dict[str, bytes]:
    """Return the output for people and for bug reports, with the token and the hub's as settings."""
    verbs = ("status --json", "status", "doctor --json", "invite ls --json", "logs", "config show")
    printed = {}
    for verb in (*verbs, "config show --json", "model ls --json"):
        done = await cli(node.spec.home, *verb.split(), MESHD_JOIN=token, HF_TOKEN=HUB_TOKEN)
        assert done.stdout, f"`meshd {verb}` prints nothing: {done.stderr}"
        printed[f"`meshd {verb}` of {node.spec.name}"] = (done.stdout + done.stderr).encode()
    file = node.spec.home.with_name(f"report-{node.spec.name}.txt")
    done = await cli(node.spec.home, "report", str(file), MESHD_JOIN=token, HF_TOKEN=HUB_TOKEN)
    printed[f"the report of {node.spec.name}"] = file.read_bytes() + done.stderr.encode()
    return printed


def readable_by_others(home: Path) -> list[str]:
    """Files of a home that others may read or write."""
    return [
        str(file) for file in home.rglob("*") if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077
    ]


async def answered(node: LocalNode, key: str) -> tuple[int, bytes]:
    """Ask the node's API with that key."""
    api = api_of(await node.status())

    def ask() -> tuple[int, bytes]:
        connection = api.open()
        body = f'{{"prompt": "{PROMPT}", "max_tokens": 4, "model": "smol"}}'
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, said + str(answer.headers).encode()

    return await asyncio.to_thread(ask)


async def refused_joins(home: Path, token: str) -> bytes:
    """Return what a member is told that joins again with the token, and with a damaged one."""
    said = ""
    for words in (token, token[:40] + ("a" if token[40] != "a" else "b") + token[41:]):
        done = await cli(home, "worker", "--listen", "127.0.0.1:0", MESHD_JOIN=words)
        assert done.returncode == 1
        said += done.stdout + done.stderr
    return said.encode()


async def running(
    fleet: Fleet, relay: RelayHint, key_file: Path
) -> tuple[str, tuple[LocalNode, LocalNode, LocalNode]]:
    """Start worker, head and client; returns the token and the nodes once the model answers."""
    worker = await fleet.worker("worker", *VERBOSE, model=smollm2())
    token = await worker.token()
    options = ("--model", str(smollm2()), "--port", "0", "--ctx-size", "512", *VERBOSE)
    secured = ("--api-key-file", str(key_file), "--relay", relay_url(relay))
    spec = fleet.spec("head", "serve", *options, *secured, *SAME_THREADS, token=token)
    head = await fleet.start(replace(spec, environment={**spec.environment, "HF_TOKEN": HUB_TOKEN}))
    await fleet.ready(head)
    client = await fleet.start(fleet.spec("client", "client", "--port", "0", *VERBOSE, token=token))
    await client.until(lambda status: status.api is not None and status.api.ready)
    return token, (worker, head, client)


async def seen_in_use(folder: Path, relay: Relay) -> tuple[Mapping[bytes, str], dict[str, bytes]]:
    """Return the secrets of nodes that have answered, and all that may be seen of them."""
    key_file = folder / "keys.txt"
    key_file.write_text(f"{API_KEY} name=one\n")
    key_file.chmod(0o600)
    async with Fleet(folder) as fleet:
        token, nodes = await running(fleet, relay.hint, key_file)
        _, head, client = nodes
        places = {"an error about a token": await refused_joins(head.spec.home, token)}
        for node, key, status in ((head, API_KEY, 200), (head, API_KEY[:-1], 401), (client, API_KEY, 200)):
            code, said = await answered(node, key)
            assert code == status, said
            places[f"the answer {code} of {node.spec.name}"] = said
        for node in nodes:
            assert node.pid is not None
            assert readable_by_others(node.spec.home) == []
            places |= processes(node.pid, node.spec.name) | logs(node.spec.home) | await shown(node, token)
        assert relay.process is not None
        places |= processes(relay.process.pid, "the relay")
        secrets = planted(token, [*(node.spec.home for node in nodes), relay.key_file.parent])
        assert leaks(secrets, environment(head)) == ["the hub's token in it", "the token in it"], (
            "it can fail"
        )
    return secrets, places


def test_no_secret_is_to_be_seen(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "relay-home")
    relay.start(*VERBOSE)
    try:
        secrets, places = play(seen_in_use(tmp_path, relay))
    finally:
        _, _, said = relay.end()
    places["the log of the relay"] = said.encode()
    assert leaks(secrets, places) == []
    assert any(b"link_up" in data for place, data in places.items() if "the log " in place)
    assert any("the environment of a child of head" in place for place in places)
