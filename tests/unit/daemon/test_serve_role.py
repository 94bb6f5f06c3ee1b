"""How a model is served follows from its settings: each of them reaches the head."""

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config, Paths
from meshd.daemon.member_node import MemberNode
from meshd.daemon.serve_role import head_options
from meshd.plan.wishes import DraftModel, HeadOptions

from tests.unit.config.test_load import EXAMPLES
from tests.unit.config.test_model_tables import OF_THE_API
from tests.unit.identity.cast import MESH, ROOT

FILES = {"model", "header_only", "draft_model", "fallback_models"}  # opened before
DRAFT = cast(DraftModel, object())


def options(serve: ServeConfig, paths: Paths | None = None, draft: DraftModel | None = None) -> HeadOptions:
    facts = SimpleNamespace(peer=ROOT.peer, incarnation=b"")
    member = SimpleNamespace(membership=SimpleNamespace(mesh=MESH), node=SimpleNamespace(facts=facts))
    return head_options(Config(serve=serve, paths=paths or Paths()), cast(MemberNode, member), draft)


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
