"""`meshd report` beside a real daemon, with a secret of its own planted in every place where one may be.

The control finds each of them in its place by the same search, so a report without them is not an accident.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from meshd.identity.invite import parse_token
from meshd.identity.keystore import Home
from meshd.identity.recovery_code import write_code

from tests.e2e.nodes import Fleet, cli, play
from tests.gguf_bytes import gguf, language_model

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc"),
]
PERSON, PUBLIC = "zoltanek", "93.184.216.34"
PEER_NAME = "hf_plantedPeerName0123456789"
API_KEY, OLD_KEY = "plantedApiKey-0123456789abcdef", "sk-plantedOldKey0123456789"
HUB_TOKEN, SHELL_TOKEN = "plantedHubToken.0123456789", "plantedShellToken/0123456789=="
CREDENTIAL, STRANGERS = "plantedCredential+0123456789", "meshd1" + "plantedtokenofanothermesh" * 3
DAEMON_TOKEN = "plantedDaemonToken_0123456789"
IN_MODEL, PROMPT = "planted words in a model", "a planted prompt that nobody shall read"


def spellings(secret: str | bytes) -> Iterator[bytes]:
    """Write a secret in each way that a program might."""
    raw = secret.encode() if isinstance(secret, str) else secret
    yield from (raw, raw.hex().encode(), raw.hex().upper().encode(), quote(raw, safe="").encode())
    yield from (base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"="))
    yield from (base64.b32encode(raw).rstrip(b"="), base64.b32encode(raw).rstrip(b"=").lower())
    if isinstance(secret, str):
        yield json.dumps(secret)[1:-1].encode()


def found_in(data: bytes, secrets: Mapping[str, str | bytes]) -> set[str]:
    """Return which secrets are in these bytes, in any spelling."""
    return {name for name, secret in secrets.items() if any(text in data for text in spellings(secret))}


@dataclass(slots=True)
class Planted:
    """The secrets by name, and for each the place where it is."""

    secrets: dict[str, str | bytes] = field(default_factory=dict)
    places: dict[str, Callable[[], bytes]] = field(default_factory=dict)

    def add(self, name: str, secret: str | bytes, place: Path | Callable[[], bytes]) -> None:
        self.secrets[name] = secret
        self.places[name] = place.read_bytes if isinstance(place, Path) else place

    def file(self, name: str, secret: str, path: Path, text: str) -> Path:
        """Write the secret into a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(secret))
        path.chmod(0o600)
        self.add(name, secret, path)
        return path

    def control(self) -> set[str]:
        """Return the secrets that the search finds where they are."""
        found = {name: found_in(read(), {name: self.secrets[name]}) for name, read in self.places.items()}
        return set().union(*found.values())


def plant_files(folder: Path, person: Path, home: Path, tokens: list[str], planted: Planted) -> Path:
    """Write all files but the home's own; return the configuration."""
    planted.file("key file", API_KEY, folder / "keys.txt", "{} name=" + PERSON + "\n")
    planted.file("invite file", tokens[1], folder / "invite.txt", "{}\n")
    planted.file("hub token", HUB_TOKEN, person / "hf/token", "{}\n")
    planted.file("credential", CREDENTIAL, folder / "credentials/meshd.join", "{}\n")
    old = f"2020-01-01T00:00:00.000000Z [info ] old token={{}} remote={PUBLIC}:1 why='{OLD_KEY}' {API_KEY}\n"
    planted.file("token in an old log", tokens[2], home / "logs/meshd.log.1", old)
    planted.add("key in an old log", OLD_KEY, home / "logs/meshd.log.1")
    planted.add("address", PUBLIC, home / "logs/meshd.log.1")
    line = f"request: {{{{'prompt': '{{}}'}}}}\nllama_model_loader: - kv 2: general.name str = {IN_MODEL}\n"
    planted.file("prompt", PROMPT, home / "logs/llama-server.log", line)
    config = f"[node]\njoin = '@{folder}/invite.txt'\n[serve]\napi_key_file = 'keys.txt'\n# {{}}\n"
    return planted.file("token in the configuration", STRANGERS, folder / "m.toml", config)


def plant_keys(home: Path, name: str, planted: Planted) -> None:
    """Note the keys of a home."""
    store = Home(home)
    planted.add(f"key of {name}", store.load_or_create_identity().seed, home / "identity.key")
    membership = store.load_membership()
    assert membership is not None
    for entry in store.load_invites(membership.mesh).entries():
        planted.add(f"invite of {name}", entry.secret, home / "invites")
    if (root := membership.root_seed) is not None:
        planted.add("root key", root, home / "membership")
        planted.add("recovery code", write_code(root), lambda: write_code(root).encode())


async def written(folder: Path, home: Path, name: str, **variables: str) -> bytes:
    """Return the report of a node."""
    file = folder / f"{name}.txt"
    done = await cli(home, "report", str(file), **variables)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert done.stdout == f"{file}\n"
    return file.read_bytes() + done.stderr.encode()


async def reported(folder: Path) -> tuple[Planted, list[bytes]]:
    """Return what was planted, and the reports of a founder and of a member, with and without its daemon."""
    planted, person = Planted(), folder / "people" / PERSON
    model = person / "tiny.gguf"
    async with Fleet(folder) as fleet:
        founder = await fleet.worker(PEER_NAME)
        tokens = [await founder.token()]
        for _ in range(2):
            done = await cli(founder.spec.home, "invite")
            tokens.append(done.stdout.strip())
        home = folder / "member"
        config = plant_files(folder, person, home, tokens, planted)
        metadata, tensors = language_model(extra={"general.name": IN_MODEL})
        model.write_bytes(gguf(metadata, tensors))
        planted.add("model", IN_MODEL, model)
        options = ("--config", str(config), "--join", tokens[0], "--model", str(model))
        spec = fleet.spec("member", "worker", *options)
        variables = {"HOME": str(person), "USER": PERSON, "HF_HOME": str(person / "hf")}
        own = {**variables, "SOME_TOKEN": DAEMON_TOKEN}
        member = await fleet.start(replace(spec, environment={**spec.environment, **own}))
        await member.until(lambda status: any(peer.state == "connected" for peer in status.peers))
        process = Path(f"/proc/{member.pid}")
        command, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        planted.add("token of a command line", tokens[0], lambda: command)
        planted.add("variable of the daemon", DAEMON_TOKEN, lambda: environ)
        planted.add("variable of the shell", SHELL_TOKEN, SHELL_TOKEN.encode)
        planted.add("name of a peer", PEER_NAME, lambda: json.dumps(peers).encode())
        peers = [peer.name for peer in (await member.status()).peers]
        planted.add("name of a person", PERSON, lambda: command)
        variables |= {"SOME_SECRET": SHELL_TOKEN, "CREDENTIALS_DIRECTORY": str(folder / "credentials")}
        for name, path in (("founder", founder.spec.home), ("member", home)):
            plant_keys(path, name, planted)
        planted.add("secret of an invite", parse_token(tokens[0]).secret, founder.spec.home / "invites")
        reports = [await written(folder, founder.spec.home, "founder", **variables)]
        reports.append(await written(folder, home, "member", **variables))
    variables["MESHD_CONFIG"] = str(config)
    reports.append(await written(folder, home, "stopped", **variables))
    return planted, reports


def test_no_planted_secret_is_in_a_report(tmp_path: Path) -> None:
    planted, reports = play(reported(tmp_path))
    assert planted.control() == planted.secrets.keys() and len(planted.secrets) >= 18
    for report in reports:
        assert found_in(report, planted.secrets) == set()
        assert b"[secret removed]" in report
    founder, member, stopped = (report.decode() for report in reports)
    assert "link:" in member and "those with which the node was started" in member
    assert "node.join = [hidden]  (option --join)" in member
    assert "node.join = [hidden]  (file " in stopped and "no daemon is running" in stopped
    assert "~/tiny.gguf" in member and "remote=ip4-1:1" in member
    assert "mesh_founded" in founder and "name: member" in founder
