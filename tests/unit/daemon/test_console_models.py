"""The actions of the page on models: as the command line does them, from fields of a stranger."""

import asyncio
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.admin import api
from meshd.admin.plan_api import MemoryLimit, PlanRequest
from meshd.admin.plan_options import PlanOptions, plan_request
from meshd.base.errors import MeshdError, RemoteProtocolError, UsageError, UserError
from meshd.cli.options import Arguments, Parser
from meshd.cli.output import Output
from meshd.cli.plan import Plan
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config
from meshd.daemon.console_actions import Abilities, ConsoleActions
from meshd.daemon.console_models import ModelActions
from meshd.gateway.console import FRESH_ACTIONS

from tests.unit.admin.fake import FakeControl, member_model
from tests.unit.library.models import put, tiny

DIGITS = "0123456789abcdef" * 4
HEADER = "1" * 64


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One model here, in a home of its own."""
    folder = tmp_path / "user"
    monkeypatch.setenv("HOME", str(folder))
    for name in ("HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    put(folder / ".models/own-Q8_0.gguf", tiny())
    return folder


class FakePool:
    def __init__(self) -> None:
        self.done: list[str] = []

    def load(self, name: str) -> None:
        self.done.append(f"load {name}")

    def unload(self, name: str) -> None:
        raise UserError(f"{name} has 1 request", hint="wait")


def actions(control: FakeControl, pool: FakePool | None = None) -> ModelActions:
    return ModelActions(control, Config(), lambda: pool)


def control() -> FakeControl:
    far = member_model("garage", "far-Q8_0", 5_000_000, DIGITS)
    return FakeControl(models=(member_model("garage", "own-Q8_0", len(tiny())), far))


def parsed(*words: str) -> Arguments:
    """What the verb reads from its command line."""
    parser = Parser(prog="meshd plan")
    Plan().add_arguments(parser)
    return parser.parse_args(words)


async def test_a_plan_is_for_a_file_of_that_name(models: Path) -> None:
    asked = control()
    reply = await actions(asked).plan({"model": "own-Q8_0", "ctx_size": "4096", "streams": 2})
    path = str(models / ".models/own-Q8_0.gguf")
    assert asked.asked == [("plan", path, 4096, 2)]
    assert reply["model"] == "SmolLM2.gguf"
    await actions(asked).plan({"model": path})
    assert asked.asked[1] == ("plan", path, 0, 0)


async def test_a_plan_is_for_a_model_that_is_served_by_that_name(models: Path, tmp_path: Path) -> None:
    """The page offers these names, wherever the files are."""
    file = tmp_path / "elsewhere/Far-Q8_0.gguf"
    put(file, tiny())
    several = (
        ModelConfig(name="one", serve=ServeConfig(model=file), aliases=("gpt",)),
        ModelConfig(name="two", serve=ServeConfig(model="own-Q8_0")),
    )
    asked = control()
    for name in ("one", "gpt", "two"):
        await ModelActions(asked, Config(models=several), lambda: None).plan({"model": name})
    only = Config(serve=ServeConfig(model=file))
    await ModelActions(asked, only, lambda: None).plan({"model": "Far-Q8_0"})
    own = str(models / ".models/own-Q8_0.gguf")
    assert asked.asked == [("plan", path, 0, 0) for path in (str(file), str(file), own, str(file))]


async def test_a_plan_for_a_model_of_members_takes_its_headers(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    header = folder / "far.gguf"
    put(header, tiny())
    done = api.PullReply(id=1, step="done", paths=(str(header),))
    asked = control()
    asked.pulls = [api.PullReply(id=1, step="fetching"), done]
    await actions(asked).plan({"model": "mesh:far-Q8_0"})
    assert asked.asked[-1] == ("plan", str(header), 0, 0)
    assert not folder.exists(), "it was taken for the plan alone"
    asked.pulls = [api.PullReply(id=1, step="failed", error="nobody has it", code=api.NO_MEMBER_HAS_IT)]
    with pytest.raises(UserError, match=r"on this machine.*; nobody has it"):
        await actions(asked).plan({"model": "far-Q8_0"})


@pytest.mark.virtual
async def test_a_plan_that_is_given_up_ends_its_pull() -> None:
    asked = control()
    asked.pulls = [api.PullReply(id=7, step="fetching")] * 10
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.2):
            await actions(asked).plan({"model": "mesh:far-Q8_0"})
    assert asked.asked[-1] == ("pull_stop", 7)


@pytest.mark.parametrize("name", ["relative.gguf", "../own-Q8_0.gguf", "/no/such/file.gguf", "\0", "", "a b"])
async def test_names_that_mean_nothing(name: str, monkeypatch: pytest.MonkeyPatch, models: Path) -> None:
    """Also those of files beside this process: a page knows nothing of them."""
    put(models / "relative.gguf", tiny())
    monkeypatch.chdir(models)
    asked = control()
    asked.pulls = [api.PullReply(id=1, step="failed", error="nobody has it")]
    for act in (actions(asked).plan, actions(asked).remove):
        with pytest.raises(MeshdError):
            await act({"model": name})
    assert "('plan'" not in str(asked.asked)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ctx_size", "-1"),
        ("ctx_size", str(1 << 25)),
        ("ctx_size", "lots"),
        ("streams", 65),
        ("streams", -1),
        ("tensor_split", "0,0"),
        ("tensor_split", "1,-1"),
        ("layers", "a=3-0"),
        ("layers", "a"),
        ("memory", "a=-1"),
        ("memory", "=8G"),
        ("device", "none,CUDA0"),
    ],
)
async def test_options_of_a_plan_are_refused_as_the_command_line_refuses_them(
    option: str, value: str | int
) -> None:
    asked = control()
    with pytest.raises(UsageError) as caught:
        await actions(asked).plan({"model": "own-Q8_0", option: value})
    name = f"--{option.replace('_', '-')}"
    assert caught.value.what.startswith(name) and asked.asked == []
    with pytest.raises(UsageError) as by_the_verb:
        Plan().run(parsed("--model", "own-Q8_0", f"{name}={value}"), Output(StringIO(), StringIO(), {}))
    assert by_the_verb.value.what == caught.value.what


async def test_options_of_a_plan_mean_what_they_mean_on_the_command_line() -> None:
    asked = control()
    own = actions(asked)
    options = PlanOptions(
        ctx_size="max",
        tensor_split="3,1",
        workers="garage, attic",
        memory="garage=8G,500M",
        device="none",
    )
    given = {name: value for name, value in asdict(options).items() if value}
    await own.plan({"model": "own-Q8_0", **given})
    limits = (MemoryLimit(node="garage", bytes=8 << 30), MemoryLimit(node="", bytes=500 << 20))
    wanted = PlanRequest(model="", largest_context=True, workers=("garage", "attic"), memory=limits)
    assert plan_request(options) == replace(wanted, tensor_split=(3.0, 1.0), devices=("none",))
    await own.plan({"model": "own-Q8_0", "layers": "a=0-3, b=4-7"})
    over = ("plan over", ("garage", "attic"), (3.0, 1.0), ("none",), limits)
    assert {("plan options", True, (), ""), over} <= set(asked.asked)
    assert ("plan options", False, ("a=0-3", "b=4-7"), "") in asked.asked


@given(st.text(), st.integers(), st.text(), st.text())
def test_any_options_are_taken_or_refused(ctx_size: str, streams: int, layers: str, memory: str) -> None:
    try:
        made = plan_request(PlanOptions(ctx_size=ctx_size, streams=streams, layers=layers, memory=memory))
    except UsageError:
        return
    assert made.ctx_size >= 0 and 0 <= made.streams <= 64
    assert all(limit.bytes >= 0 for limit in made.memory)


async def test_a_model_of_the_user_is_not_removed(models: Path) -> None:
    with pytest.raises(UserError, match="not downloaded by meshd"):
        await actions(control()).remove({"model": "own-Q8_0"})
    assert (models / ".models/own-Q8_0.gguf").exists()


async def test_a_model_of_meshd_is_removed_unless_it_is_used() -> None:
    path = Config().paths.cache / "models/mine-Q8_0.gguf"
    put(path, tiny())
    asked = control()
    asked.in_use = (str(path),)
    with pytest.raises(UserError, match="the node that runs here uses it"):
        await actions(asked).remove({"model": "mine-Q8_0"})
    asked.in_use = ()
    removed = await actions(asked).remove({"model": "mine-Q8_0"})
    assert removed == {"removed": [str(path)], "bytes": len(tiny())}
    assert not path.exists()


async def test_models_on_demand_are_loaded_by_name() -> None:
    pool = FakePool()
    acts = ConsoleActions(
        control(), lambda: Abilities(serves=True), log=Path("none"), more=actions(control(), pool).acts
    )
    assert {"load", "unload", "models", "plan", "model_remove"} <= set(acts.names)
    assert await acts.act("load", {"model": "a"}) == {}
    assert pool.done == ["load a"]
    with pytest.raises(UserError, match="has 1 request"):
        await acts.act("unload", {"model": "a"})
    for fields in ({}, {"model": 3}, {"model": "a" * 5000}):
        with pytest.raises(RemoteProtocolError):
            await acts.act("load", fields)


async def test_a_node_with_one_model_loads_none_by_name() -> None:
    only = actions(control())
    assert not {"load", "unload"} & only.acts().keys()
    with pytest.raises(UserError, match="on demand"):
        await only.load({"model": "a"})


def test_what_wants_a_fresh_session_is_what_can_be_done() -> None:
    able = Abilities(invites=True)
    names = ConsoleActions(control(), lambda: able, log=Path("none"), more=actions(control()).acts).names
    assert set(names) >= FRESH_ACTIONS.keys()
