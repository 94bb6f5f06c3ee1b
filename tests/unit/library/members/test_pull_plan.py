"""Headers of models from members, for a plan: of one file or of several, and nothing else of them."""

from pathlib import Path

from meshd.library.headers import all_headers
from meshd.library.members.pull_plan import PlanPull
from meshd.library.members.pull_state import PullStep
from meshd.model.model_name import parse_model_name
from meshd.model.piece_index import PIECE_BYTES
from meshd.store.shard import close_all, open_shards

from tests.conformance.run import run
from tests.gguf_bytes import parse
from tests.unit.library.members.exchange_scene import NAME, Scene, scene
from tests.unit.library.members.told_member import large
from tests.unit.library.models import tiny_shards


def pull_of(it: Scene) -> PlanPull:
    return PlanPull(it.taker, parse_model_name(f"mesh:{NAME}"), it.pull(NAME)._place)


def test_the_pieces_with_the_header_come_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
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
            assert not list(all_headers(it.pull(NAME)._place.folder)), "it is listed nowhere"

    run(main())


def test_of_a_model_in_several_files_each_header(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())
