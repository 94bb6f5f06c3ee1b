"""What a daemon takes before it joins: each fault of this machine is found, and nothing stays taken."""

import asyncio
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.config.forms import HostPort
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, LinksConfig, Paths, WorkerConfig
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.role_kind import ClaimedRole
from meshd.daemon.roles import ROLES, ClaimedServe, ClaimedWorker
from meshd.daemon.run import preflight
from meshd.devices.interface import NativeBuild
from meshd.identity.keystore import Home
from meshd.store.hash_cache import HashCache
from meshd.wire.versions import NativeVersion

from tests.gguf_bytes import gguf, language_model

LISTS_DEVICES = f"#!/bin/sh\necho 'device CPU cpu - {4 << 30} {3 << 30} some processor'\n"


def native(folder: Path) -> NativeBuild:
    program = folder / "mesh-server"
    program.write_text(LISTS_DEVICES)
    program.chmod(0o755)
    return NativeBuild(program, program, program, NativeVersion("mesh 4", "pin", "sources", "cpu"), "7.0.0")


def model(folder: Path) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(gguf(*language_model()))
    return file


def config_for(folder: Path, **serve: object) -> Config:
    return replace(
        Config(),
        links=LinksConfig(listen=HostPort("127.0.0.1", 0)),
        serve=replace(ServeConfig(model=model(folder), port=0), **serve),  # type: ignore[arg-type]
        paths=Paths(home=folder / "home", cache=folder / "cache"),
    )


Claimed = tuple[ClaimedRole, MeshPort, ExitStack]


def claim(folder: Path, config: Config, role: str = "serve", build: NativeBuild | None = None) -> Claimed:
    """Run the checks; the stack closes what they opened."""
    home, hashes = Home(folder / "home"), HashCache(folder / "cache/weights")
    with ExitStack() as held:
        checking = preflight(ROLES[role], config, build or native(folder), home, hashes, held)
        return *asyncio.run(checking), held.pop_all()


def test_ports_are_bound_before_anything_else_and_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    role, mesh_port, held = claim(tmp_path, config_for(tmp_path))
    assert isinstance(role, ClaimedServe)
    ports = role.api.port, mesh_port.listener.port
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    held.close()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"devices": ("CUDA7",)}, "no device `CUDA7`"),
        ({"api_key_file": Path("/dev/null")}, "key file"),
        ({"allowed_origins": ("nonsense",)}, "is not an origin"),
        ({"allowed_hosts": ("http://x/",)}, "is not a host name"),
    ],
)
def test_faults_of_this_machine_come_first(tmp_path: Path, change: dict[str, object], what: str) -> None:
    with pytest.raises(UserError, match=what):
        claim(tmp_path, config_for(tmp_path, **change))
    assert Home(tmp_path / "home").load_membership() is None


@pytest.mark.parametrize("role", ["worker", "serve"])
def test_what_is_no_relay_comes_first(tmp_path: Path, role: str) -> None:
    config = replace(config_for(tmp_path), links=LinksConfig(relays=("foo",)))
    with pytest.raises(UserError, match="`foo` is not a relay URL"):
        claim(tmp_path, config, role)
    assert Home(tmp_path / "home").load_membership() is None


def test_taken_ports_come_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port `{port}` .* is taken"):
            claim(tmp_path, config_for(tmp_path, port=port))
        taken = replace(config_for(tmp_path), links=LinksConfig(listen=HostPort("127.0.0.1", port)))
        with pytest.raises(UserError, match=f"port `{port}` .* is taken"):
            claim(tmp_path, taken)


def test_a_worker_takes_no_api_port(tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), worker=WorkerConfig(models=(model(tmp_path),), devices=("CPU",)))
    role, _, held = claim(tmp_path, config, "worker")
    assert isinstance(role, ClaimedWorker)
    assert [file.name for file in role.files] == ["model.gguf"]
    held.close()
    with pytest.raises(UserError, match="no device `CUDA0`"):
        claim(tmp_path, replace(config, worker=WorkerConfig(devices=("CUDA0",))), "worker")


def test_an_option_after_the_dashes_that_is_meshds_own_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--model") as caught:
        claim(tmp_path, config_for(tmp_path, llama_args=("--model", "other.gguf")))
    assert "--model" in caught.value.hint


LLAMA_SERVER = """#!/bin/sh
case "$*" in
  *--nosuchopt*) echo 'error: invalid argument: --nosuchopt' >&2; exit 1;;
  *) echo 'version: 1'; echo "$@" >> {asked};;
esac
"""


def test_an_option_that_llama_server_refuses_is_found_before_the_start(tmp_path: Path) -> None:
    build, asked = native(tmp_path), tmp_path / "asked"
    server = tmp_path / "llama-server"
    server.write_text(LLAMA_SERVER.format(asked=asked))
    server.chmod(0o755)
    build = replace(build, llama_server=server)

    def make(*args: str) -> None:
        claim(tmp_path, config_for(tmp_path, llama_args=args), build=build)[-1].close()

    make()
    make("-ot", "blk=MESH0", "--nosuchopt")  # a worker's device, which this run could not know
    assert not asked.exists()
    make("--embeddings")
    assert asked.read_text() == "--embeddings --version\n"
    with pytest.raises(UserError, match="refuses its options: invalid argument: --nosuchopt") as caught:
        make("--embeddings", "--nosuchopt")
    assert caught.value.hint == "check the arguments after `--`: `--embeddings --nosuchopt`"
    assert Home(tmp_path / "home").load_membership() is None


def test_a_fallback_model_that_is_not_smaller_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    assert isinstance(config.serve.model, Path)
    same = config.serve.model.with_name("same.gguf")
    same.write_bytes(config.serve.model.read_bytes())
    with pytest.raises(UserError, match=r"`same\.gguf` is not smaller than `model\.gguf`") as caught:
        claim(tmp_path, config_for(tmp_path, fallback_models=(same,)))
    assert "fallback_models" in caught.value.hint


def several(folder: Path, **second: object) -> Config:
    """A node that serves two models."""
    config = config_for(folder)
    other = replace(config.serve, **second)  # type: ignore[arg-type]
    models = (ModelConfig(name="a", serve=config.serve), ModelConfig(name="b", serve=other))
    return replace(config, serve=replace(config.serve, model=None), models=models)


def test_the_files_of_several_models_are_opened_before_the_start(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    role, _, held = claim(tmp_path, several(tmp_path, devices=("CPU",)))
    assert isinstance(role, ClaimedServe)
    assert [[file.name for file in files] for files in role.files] == [["model.gguf"]] * 2
    held.close()
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"devices": ("CUDA7",)}, "no device `CUDA7`"),
        ({"llama_args": ("--model", "other.gguf")}, "--model"),
        ({"model": Path("/nowhere.gguf")}, "nowhere.gguf"),
    ],
)
def test_a_fault_of_one_of_several_models_is_found(
    tmp_path: Path, second: dict[str, object], what: str
) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    with pytest.raises(UserError, match=what):
        claim(tmp_path, several(tmp_path, **second))
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208
