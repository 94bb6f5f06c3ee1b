"""Headers of models from members, for a plan: of one file or of several, and nothing else of them."""

from pathlib import Path

from meshd.base.tasks import Owner, cancel_and_wait
from meshd.library.members.pull import PlanPull, PullStep
from meshd.library.pulled_models import all_headers
from meshd.model.model_name import parse_model_name
from meshd.model.weights_index import PIECE_BYTES
from meshd.store.model_file import close_all, open_shards

from tests.conformance.run import until
from tests.gguf_bytes import parse
from tests.unit.library.members.exchange_scene import NAME, Scene, scene
from tests.unit.library.members.told_member import large
from tests.unit.library.models import tiny_shards


def pull_of(it: Scene) -> PlanPull:
    return PlanPull(it.taker, parse_model_name(f"mesh:{NAME}"), it.place())


async def test_the_pieces_with_the_header_come_and_no_others(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.giver("a").has(large())
        pull = pull_of(it)
        await pull.run()
        assert pull.state.step is PullStep.DONE
        assert [one.bytes for one in pull.state.holders.values()] == [PIECE_BYTES]
        [path] = pull.state.paths
        assert path.name == f"{NAME}.header" and path.stat().st_size == len(large())
        assert path.stat().st_blocks * 512 <= PIECE_BYTES
        shards = open_shards(path, header_only=True)
        close_all(shards)
        assert [shard.header for shard in shards] == [parse(large())]
        folder = it.place().folder
        assert not list(all_headers(folder)), "it is listed nowhere"
        assert not list((folder / ".parts").iterdir()), "nothing else is left of it"


async def test_of_a_model_in_several_files_each_header(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver, parts = it.giver("a"), tiny_shards(3, NAME)
        for name, data in parts.items():
            giver.has(data, name.removesuffix(".gguf"))
        pull = pull_of(it)
        await pull.run()
        assert pull.state.step is PullStep.DONE and len(pull.state.paths) == len(parts)
        shards = open_shards(pull.state.paths[0], header_only=True)
        close_all(shards)
        assert [shard.header for shard in shards] == [parse(data) for data in parts.values()]


async def test_of_a_pull_that_ends_early_nothing_is_left(tmp_path: Path) -> None:
    """Nobody would continue it."""
    async with scene(tmp_path) as it:
        it.giver("a").has(large())
        folder = it.place().folder
        pull = PlanPull(it.taker, parse_model_name(f"mesh:{NAME}"), it.place(), rate=1.0)
        async with Owner() as owner:
            task = owner.start(pull.run(), name="pull")
            await until(lambda: pull.state.step is PullStep.FETCHING)
            await cancel_and_wait(task)
        assert not [path for path in folder.rglob("*") if "plan" in path.name]
