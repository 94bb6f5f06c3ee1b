"""How a model is served follows from its settings: each of them reaches the head."""

import asyncio
import contextlib
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config, Paths
from meshd.daemon import roles
from meshd.daemon.member_node import MemberNode
from meshd.daemon.roles import ClaimedServe, head_options
from meshd.devices.interface import RoleRuntime
from meshd.gateway.access import ApiPort
from meshd.plan.wishes import DraftModel, HeadOptions
from meshd.store.hash_cache import HashCache
from meshd.store.model_file import ModelFile

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
