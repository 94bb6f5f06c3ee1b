"""Models by name with real daemons and the real model: Ollama's layout, a hub in four parts, a full disk."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.model.cache import ContextShape
from meshd.model.gguf import read_header
from meshd.model.layers import compute_bound, read_layers
from meshd.model.short_names import SHORT_NAMES, short_model

from tests.e2e.alone import alone
from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.gguf_split import split
from tests.hub_server import Hub, serving
from tests.unit.library.models import in_ollama

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 16
MANIFEST = "registry.ollama.ai/library/smollm2/135m"
NO_MOUNTS = sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None


def _linked_into_ollama(models: Path) -> None:
    """The real model as a blob: its manifest, and a link in place of 98 MB more."""
    content = smollm2().read_bytes()
    blob = in_ollama(models, MANIFEST, content)
    blob.unlink()
    blob.symlink_to(smollm2())


def test_a_model_of_ollama_is_served_in_place(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)
    _linked_into_ollama(tmp_path / "ollama")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            options = ("--model", "ollama:smollm2:135m", "--port", "0", "--min-workers", "0", *SAME_THREADS)
            spec = fleet.spec("head", "serve", *options)
            found = {**spec.environment, "OLLAMA_MODELS": str(tmp_path / "ollama")}
            status = await fleet.ready(await fleet.start(replace(spec, environment=found)))
            assert model_of(status).name == "smollm2:135m"
            [listed] = _list((await api_of(status).ask("GET", "/v1/models")).body["data"])
            assert listed["id"] == "smollm2:135m"
            assert await api_of(status).complete(PROMPT, TOKENS) == reference

    play(check())


def test_four_parts_come_from_a_hub_and_a_folder(tmp_path: Path) -> None:
    """The head downloads them by a short name; the worker has the same parts, and is sent nothing.

    What fits is then said by the real size.
    """
    reference = alone(smollm2(), TOKENS)
    parts = split(smollm2(), _folder(tmp_path / "parts"), "Smol-Q4_K_M", 4)
    size = sum(path.stat().st_size for path in parts)
    hub = Hub({SHORT_NAMES["qwen3-4b"].repository: {path.name: path.read_bytes() for path in parts}}, cuts=2)

    async def check(variables: Mapping[str, str]) -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=tmp_path / "parts")
            token = await worker.token()
            options = ("--model", "qwen3-4b", "--port", "0", "--device", "none", *SAME_THREADS)
            spec = fleet.spec("head", "serve", *options, token=token)
            spec = replace(spec, environment={**spec.environment, **variables})
            status = await fleet.ready(await fleet.start(spec))
            assert model_of(status).weights_network_bytes == 0
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            listed = await cli(spec.home, "model", "ls", "--fits", "--json", **variables)
            fits = {one["name"]: one for one in _list(json.loads(listed.stdout))}
            assert (fits["qwen3-4b"]["bytes"], fits["qwen3-4b"]["estimated"]) == (size, False)
            assert (fits["qwen3-4b"]["here"], fits["qwen3-4b"]["mesh"]) == ("no", "cpu"), "`--device none`"

    with serving(hub):
        play(check({"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}))
    done = len(hub.headers_of("/bytes/"))
    assert done == 4 + 2, "each part once, and two cuts"


def test_the_estimate_of_a_short_name_is_near_the_real_model() -> None:
    content = smollm2().read_bytes()
    header = read_header(lambda at, count: content[at : at + count], size=len(content), label="it")
    real, short = read_layers([header], name="it"), short_model("smollm2")
    assert short is not None and short.bytes == len(content)
    estimate, shape = short.layers(), ContextShape(32768, parallel=4)
    assert (estimate.count, estimate.tied, estimate.cache.layer_bytes(shape)) == (
        real.count,
        real.tied,
        real.cache.layer_bytes(shape),
    )
    assert estimate.weight_bytes == pytest.approx(real.weight_bytes, rel=0.03)
    sizes = [
        compute_bound(one, shape, on_gpu=True, with_layers=True, with_output=True, pipelined=False)
        for one in (estimate, real)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)


_BLIND = "from meshd.library import download as d; d.Repository.check_space = lambda *_: None; "
_BLINDER = _BLIND + "d._SPACE_CHECK_BYTES = 1 << 40; d.RESERVED_BYTES = 0; "
_PULL = "import sys; from meshd.cli.main import main; sys.exit(main(['model', 'pull', 'hf:me/Smol-GGUF']))"


@pytest.mark.skipif(NO_MOUNTS, reason="needs root on Linux and unshare, to mount a small disk")
@pytest.mark.parametrize(
    ("size", "blind", "words"),
    [("80m", "", "98.4 MB are needed"), ("120m", _BLIND, "are free"), ("90m", _BLINDER, "the disk is full")],
    ids=["seen before", "seen on the way", "not seen"],
)
def test_a_small_disk(tmp_path: Path, size: str, blind: str, words: str) -> None:
    """A real file system, in a mount namespace of its own; without its own checks, the kernel stops meshd."""
    disk = _folder(tmp_path / "disk")
    hub = Hub({"me/Smol-GGUF": {"Smol-Q4_K_M.gguf": smollm2().read_bytes()}})
    script = f'mount -t tmpfs -o size={size} tmpfs {disk} && exec {sys.executable} -c "$PROGRAM"'
    with serving(hub):
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            env={**os.environ, "PROGRAM": blind + _PULL, "HF_ENDPOINT": hub.url, "HF_HOME": str(disk)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: not enough space in `{disk}") and words in error
    assert "HF_HUB_CACHE" in done.stderr
    assert (hub.sent > 0) == bool(blind)


def test_the_command_line_says_what_there_is(tmp_path: Path) -> None:
    """`pull` from a hub, then `ls`, `verify` and `rm`, each a process."""
    content = smollm2().read_bytes()
    hub = Hub({"me/Smol-GGUF": {"Smol-Q4_K_M.gguf": content}}, token="hf_x")
    variables = {"HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_x", "HOME": str(_folder(tmp_path / "user"))}

    async def check() -> None:
        async def run(*words: str) -> subprocess.CompletedProcess[str]:
            return await cli(tmp_path / "home", "model", *words, HF_ENDPOINT=hub.url, **variables)

        pulled = await run("pull", "hf:me/Smol-GGUF")
        assert pulled.returncode == 0 and "hf_x" not in pulled.stderr, pulled.stderr
        assert await asyncio.to_thread(Path(pulled.stdout.strip()).read_bytes) == content
        assert "downloading Smol-Q4_K_M.gguf (98.4 MB): 100%" in pulled.stderr
        rows = json.loads((await run("ls", "--json")).stdout)
        ours = [row for row in rows if row["source"] == "huggingface"]
        assert [row["name"] for row in ours] == ["hf:me/Smol-GGUF:Q4_K_M"]
        verified = await run("verify", "hf:me/Smol-GGUF:Q4_K_M")
        assert "is complete" in verified.stdout, verified.stderr
        assert (await run("rm", "hf:me/Smol-GGUF:Q4_K_M", "--yes")).returncode == 0
        assert (await run("show", "hf:me/Smol-GGUF:Q4_K_M")).returncode == 1

    with serving(hub):
        asyncio.run(check())
    assert cache_folder().exists()


def test_two_downloads_of_one_model_are_killed_and_a_third_continues_both(tmp_path: Path) -> None:
    """The second waits for the first; when that is killed it continues there, and is killed as well."""
    content = smollm2().read_bytes()
    hub = Hub({"me/Smol-GGUF": {"Smol-Q4_K_M.gguf": content}}, pause=0.005)
    argv = [sys.executable, "-m", "meshd", "model"]
    with serving(hub):
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def pull() -> "subprocess.Popen[str]":
            command = [*argv, "pull", "hf:me/Smol-GGUF"]
            return subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )

        def killed_after_more(process: "subprocess.Popen[str]") -> None:
            hub.reached.clear()
            hub.mark = hub.sent + (10 << 20)
            assert hub.reached.wait(60)
            process.kill()
            assert process.wait(30) == -signal.SIGKILL

        with pull() as first:
            hub.reached.clear()
            hub.mark = hub.sent + 1
            assert hub.reached.wait(60)
            with pull() as second:
                assert second.stderr is not None
                assert any("another program is downloading" in line for line in second.stderr)
                killed_after_more(first)
                killed_after_more(second)
        shown = subprocess.run(
            [*argv, "show", "hf:me/Smol-GGUF"], env=environment, capture_output=True, timeout=60, check=False
        )
        assert shown.returncode == 1, "a part is no model"
        hub.pause = 0.0
        with pull() as third:
            out, errors = third.communicate(timeout=60)
    assert third.returncode == 0, errors
    assert Path(out.strip()).read_bytes() == content
    begun_at = [int(one.get("Range", "bytes=0-")[6:-1]) for one in hub.headers_of("/bytes/")]
    assert begun_at == sorted(begun_at) and len(begun_at) == 3, begun_at
    assert begun_at[1] > 8 << 20 and begun_at[2] > 16 << 20, begun_at


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
