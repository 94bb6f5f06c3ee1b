"""Nodes with models on disks of their own, joined in memory, and one that takes models from them."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.identity.membership import Role
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.members.give import OWN_SOURCES, ModelsTeller, OfferedModels, PieceGiver
from meshd.library.members.pull import ModelPull, PullPlace
from meshd.library.stores import Stores
from meshd.model.model_name import parse_model_name
from meshd.store.hash_cache import HashCache, PieceCache
from meshd.wire.models import ToldDisk

from tests.gguf_bytes import gguf, language_model
from tests.unit.head.fake_mesh import FakeMesh, Net
from tests.unit.library.models import put

NAME = "big-Q8_0"


@cache
def big() -> bytes:
    """A model of three pieces."""
    return gguf(*language_model(width=512, vocabulary=5000))


def stores_of(folder: Path) -> Stores:
    """All below one folder."""
    return Stores(
        hub=folder / "hub",
        ollama=[folder / "ollama"],
        lm_studio=[folder / "lm"],
        folder=folder / "own",
        meshd=folder / "cache/models",
    )


CACHES = OWN_SOURCES | {ModelSource.HUB, ModelSource.OLLAMA}


class Giver:
    """A node that has models."""

    def __init__(
        self, net: Net, folder: Path, name: str, *, sources: Collection[ModelSource] = CACHES
    ) -> None:
        self.mesh = net.mesh(name)
        self.folder = folder / name
        self.serving = False
        hashes = HashCache(self.folder / "cache/weights")
        self.pieces = PieceCache(self.folder / "cache/pieces", hashes)
        self.offered = OfferedModels(
            lambda: stores_of(self.folder), self.folder / "cache/weights", self.pieces, sources=sources
        )
        self.disk: ToldDisk | None = None
        ModelsTeller(self.mesh, self.offered, self.pieces, hashes, disk=lambda: self.disk)
        PieceGiver(self.mesh, self.offered, is_serving=lambda: self.serving)

    def has(self, data: bytes, name: str = NAME) -> Path:
        """A file of its own folder of models."""
        return put(self.folder / f"cache/models/{name}.gguf", data)


class Scene:
    """`taker` takes; givers as a test makes them."""

    def __init__(self, net: Net, folder: Path, roles: frozenset[Role]) -> None:
        self.net, self.folder = net, folder
        self.taker = net.mesh("taker", roles=roles)

    def giver(self, name: str, *, sources: Collection[ModelSource] = CACHES) -> Giver:
        return Giver(self.net, self.folder, name, sources=sources)

    def mute(self, name: str) -> FakeMesh:
        """A member that a test speaks for."""
        return self.net.mesh(name)

    def pull(self, name: str, *, rate: float | None = None, own: Sequence[StoredModel] = ()) -> ModelPull:
        """`own`: the models that the taker's machine has."""
        return ModelPull(self.taker, parse_model_name(name), self.place(own), rate=rate)

    def place(self, own: Sequence[StoredModel] = ()) -> PullPlace:
        cache = self.folder / "taker"
        hashes = HashCache(cache / "weights")
        return PullPlace(cache / "models", hashes, PieceCache(cache / "pieces", hashes), lambda: own)


@asynccontextmanager
async def scene(folder: Path, *, roles: frozenset[Role] = frozenset(Role)) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        yield Scene(Net(owner), folder, roles)
        owner.cancel()


def taken(pull: ModelPull) -> dict[str, int]:
    """The bytes that each member gave."""
    return {one.node: one.bytes for one in pull.state.holders.values()}


async def failed(pull: ModelPull) -> MeshdError:
    """Return how a pull that must not succeed ended."""
    try:
        await pull.run()
    except MeshdError as error:
        return error
    raise AssertionError("it was pulled")
