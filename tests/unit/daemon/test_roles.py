"""The roles stand in one table, and nothing else tells one from another by its name; how a head is built."""

import ast
import asyncio
import contextlib
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from meshd.base import log
from meshd.cli.main import VERBS
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config, Paths
from meshd.daemon import roles
from meshd.daemon.member_node import MemberNode
from meshd.daemon.roles import ROLES, ClaimedServe, OwnModels, head_options, tracing_of, wants_traces
from meshd.devices.interface import RoleRuntime
from meshd.gateway.access import ApiPort
from meshd.plan.wishes import DraftModel, HeadOptions
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

from tests.rules.source import Source, sources
from tests.unit.config.test_load import EXAMPLES
from tests.unit.config.test_model_tables import OF_THE_API
from tests.unit.identity.cast import MESH, ROOT

FILES = {"model", "header_only", "draft_model", "fallback_models"}  # opened before
DRAFT = cast(DraftModel, object())
MEMBER = cast(
    MemberNode,
    SimpleNamespace(
        membership=SimpleNamespace(mesh=MESH),
        node=SimpleNamespace(facts=SimpleNamespace(peer=ROOT.peer, incarnation=b"")),
    ),
)


def compared(source: Source) -> list[str]:
    """Names of roles that something is compared with."""
    return [
        f"{source.path}:{node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in ROLES
    ]


def test_every_role_has_a_verb() -> None:
    assert set(ROLES) <= {verb.name for verb in VERBS}


def test_no_name_of_a_role_is_compared_with() -> None:
    asked = Source.of("x.py", 'if role == "serve" or role in ("worker", "x"): pass\nroles = {"worker": 1}')
    assert compared(asked) == ["x.py:1", "x.py:1"]
    found = [place for source in sources("meshd") for place in compared(source)]
    assert found == []


def test_a_workers_library_is_the_whole_models_in_meshds_own_folder(tmp_path: Path) -> None:
    """Not what is being pulled, not a model that lacks a shard, and nothing beside that folder."""
    folder = tmp_path / "models"
    whole = (folder / "demo.gguf", folder / "mesh-abc/pulled-00001-of-00002.gguf")
    others = (
        folder / "mesh-abc/pulled-00002-of-00002.gguf",
        folder / "cut-00001-of-00002.gguf",
        folder / ".parts/abc/coming.gguf",
        tmp_path / "beside.gguf",
    )
    for path in (*whole, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    library = OwnModels(folder, HashCache(tmp_path / "weights"))
    assert set(asyncio.run(library.paths())) == set(whole)
    assert asyncio.run(OwnModels(tmp_path / "none", library.hashes).paths()) == []
    if os.getuid() == 0:  # so that files can be another's
        os.chown(whole[0], 12345, 12345)
        assert whole[0] not in asyncio.run(library.paths()), "somebody else's"


def options(serve: ServeConfig, paths: Paths | None = None, draft: DraftModel | None = None) -> HeadOptions:
    return head_options(Config(serve=serve, paths=paths or Paths()), MEMBER, draft)


@pytest.mark.parametrize(
    "field", [one.name for one in fields(ServeConfig) if one.name not in OF_THE_API | FILES]
)
def test_each_setting_reaches_the_head(field: str) -> None:
    value = EXAMPLES[f"serve.{field}"][1]
    changed = replace(ServeConfig(), **{field: value})  # type: ignore[arg-type]
    assert options(changed) != options(ServeConfig())


def test_drafts_are_those_of_the_pin_and_can_be_switched_off() -> None:
    on, off = ServeConfig(), ServeConfig(speculate="off")
    assert (options(on, draft=DRAFT).speculate, options(on, draft=DRAFT).draft) == ("auto", DRAFT)
    for one in (options(off, draft=DRAFT), options(on, Paths(native_bin=Path("/b")), DRAFT)):
        assert (one.speculate, one.draft) == ("off", None)


def test_a_head_is_built_without_its_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread imports that, and aiohttp with it, while the node looks for its workers."""
    for name in ("meshd.gateway.request", "meshd.gateway.server", "aiohttp"):
        monkeypatch.setitem(sys.modules, name, cast(ModuleType, None))  # to import it fails
    monkeypatch.setattr("meshd.head.model.Model", lambda *_args: SimpleNamespace(explain=None, drafting=None))
    monkeypatch.setattr(roles, "device_speeds", lambda *_args: None)
    claimed = ClaimedServe(
        Config(),
        [[cast(ModelFile, None)]],
        cast(ApiPort, None),
        cast(HashCache, None),
        contextlib.ExitStack(),
    )
    built = asyncio.run(claimed.build(cast(RoleRuntime, None), MEMBER))
    assert built.gateway is not None
    with pytest.raises(ImportError):
        built.gateway()


COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "True"}, False),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "false"}, True),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_who_names_a_collector_wants_traces(environ: dict[str, str], wanted: bool) -> None:
    assert wants_traces(environ) is wanted


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


async def test_traces_that_cannot_be_made_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tracing_of({}, "desk") is None and _said(capsys) == ""
    grpc = {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert tracing_of(grpc, "desk") is None
    assert "by `http/protobuf`, not by `grpc`" in _said(capsys)
    with monkeypatch.context() as wrong:
        wrong.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
        assert tracing_of(COLLECTOR, "desk") is None
    assert "schedule_delay" in _said(capsys)
    monkeypatch.delitem(sys.modules, "meshd.gateway.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert tracing_of(COLLECTOR, "desk") is None
    assert "pipx inject meshd opentelemetry" in _said(capsys)


async def test_headers_of_a_collector_that_cannot_be_read_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer s3cret-of-the-collector")
    log.set_up(level="debug")
    try:
        tracing = tracing_of(COLLECTOR, "desk")
        assert tracing is not None
        await tracing.close()
    finally:
        log.set_up(level="warning")
    assert "s3cret" not in _said(capsys)


async def test_a_service_name_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for environ, name in (
        ({}, "meshd"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours,zone=a"}, "ours"),
    ):
        with monkeypatch.context() as here:
            for variable, value in environ.items():
                here.setenv(variable, value)
            tracing = tracing_of({**COLLECTOR, **environ}, "desk")
            assert tracing is not None
            attributes = tracing.resource.attributes
            assert (attributes["service.name"], attributes["service.instance.id"]) == (name, "desk")
            await tracing.close()
