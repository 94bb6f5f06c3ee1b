"""Test what a name or digits of a fingerprint may mean, whatever members say, now and after a pull."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from meshd.library.interface import NotHere
from meshd.library.members.pull import ModelPull, NobodyHasIt
from meshd.library.pulled_models import find_header, names_of
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import MeshName

from tests.gguf_bytes import gguf, language_model
from tests.unit.library.members.exchange_scene import NAME, Scene, failed, scene, stores_of
from tests.unit.library.members.told_member import Member, fingerprint_of, index_of, large, lying, pull_of
from tests.unit.library.models import pulled, put, tiny
from tests.unit.store.header_files import hashes_of

WANTED = bytes.fromhex(fingerprint_of(large()))


@cache
def other() -> bytes:
    """Another model, of the same size and with the same tensors."""
    return gguf(*language_model(width=1024, vocabulary=32, layers=16, fill=7))


def honest(it: Scene) -> None:
    Member(large(), hashes_of(large()), WANTED).speaks_for(it.mute("honest"))


def pull_by(it: Scene, name: str, *, header: bool) -> ModelPull:
    return pull_of(it, name) if header else it.pull(name)


def found_by(folder: Path, name: str) -> list[tuple[Path, ...]]:
    """Return what this machine has by that name from now on."""
    return found_in(stores_of(folder), name)


def found_in(stores: Stores, name: str) -> list[tuple[Path, ...]]:
    try:
        return [Resolver(stores, lambda _: None).local(name).paths]
    except NotHere:
        return []


LIARS = {
    "name": Member(other(), hashes_of(other()), names=(WANTED.hex(),)),
    "content": Member(other(), hashes_of(other()), content=WANTED),
    "name and content": Member(other(), hashes_of(other()), content=WANTED, names=(WANTED.hex(),)),
    "second name": Member(other(), hashes_of(other()), names=(NAME, WANTED.hex(), f"hf:{WANTED.hex()}")),
    "fingerprint": Member(other(), hashes_of(other()), WANTED),
    "fingerprint and name": Member(other(), hashes_of(other()), WANTED, names=(WANTED.hex(),)),
}


@pytest.mark.parametrize("header", [False, True], ids=["whole", "header"])
@pytest.mark.parametrize("digits", [64, 32])
@pytest.mark.parametrize("liar", LIARS)
async def test_another_model_under_a_fingerprint(
    tmp_path: Path, liar: str, digits: int, header: bool
) -> None:
    name = f"mesh:{WANTED.hex()[:digits]}"

    async with scene(tmp_path) as it:
        LIARS[liar].speaks_for(it.mute("liar"))
        await failed(pull_by(it, name, header=header))
        assert not list((tmp_path / "taker/models").glob("[mh]*"))
        honest(it)
        pull = pull_by(it, name, header=header)
        await pull.run()
        assert pull.state.fingerprint == WANTED.hex()


async def test_a_content_id_does_not_prove_the_hashes_of_layers(tmp_path: Path) -> None:
    """All that comes is of that content, but the layers are only told of."""
    content = index_of(large()).content

    async with scene(tmp_path) as it:
        liar = Member(large(), lying(large(), about="blk.1."), content=content)
        liar.speaks_for(it.mute("liar"))
        error = await failed(pull_of(it, f"mesh:{content.hex()}"))
        assert isinstance(error, NobodyHasIt) and "by its fingerprint" in error.hint
        whole = it.pull(f"mesh:{content.hex()}")
        await whole.run()
        assert whole.state.fingerprint == WANTED.hex(), "a whole one is what its content says"
        by_name = pull_of(it)
        await by_name.run()
        assert find_header(tmp_path / "taker/models", MeshName(content.hex())) is None


async def test_a_header_is_found_later_by_no_other_name(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        names = ("nice-Q8_0", "trusted-Q8_0", "f" * 64, WANTED.hex())
        Member(other(), hashes_of(other()), names=names).speaks_for(it.mute("liar"))
        pull = pull_of(it, "mesh:nice-Q8_0")
        await pull.run()
        models = tmp_path / "taker/models"
        assert find_header(models, MeshName("nice-q8_0")) is not None
        assert find_header(models, MeshName(fingerprint_of(other()))) is not None
        for name in names[1:]:
            assert find_header(models, MeshName(name)) is None


@pytest.mark.parametrize("names", [(WANTED.hex(), "nice-Q8_0"), ("trusted-Q8_0", "nice-Q8_0")])
async def test_a_model_is_pulled_by_the_name_of_its_file_alone(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Or it would be found here by another one than it was asked for."""
    async with scene(tmp_path) as it:
        Member(other(), hashes_of(other()), names=names).speaks_for(it.mute("liar"))
        for header in (False, True):
            error = await failed(pull_by(it, "mesh:nice-Q8_0", header=header))
            assert isinstance(error, NobodyHasIt)


@pytest.mark.parametrize("header", [False, True])
async def test_what_was_pulled_is_found_by_the_name_of_its_pull_and_no_other(
    tmp_path: Path, header: bool
) -> None:
    """A member called its file as it liked; the user did not ask for that."""
    stores = replace(stores_of(tmp_path), meshd=tmp_path / "taker/models")
    digits, by_name = f"mesh:{WANTED.hex()}", f"mesh:{NAME}"

    async with scene(tmp_path) as it:
        honest(it)
        first = pull_by(it, digits, header=header)
        await first.run()
        assert found_in(stores, digits) == [first.state.paths]
        assert found_in(stores, by_name) == found_in(stores, NAME) == []
        again = pull_of(it, by_name) if header else it.pull(by_name, own=list(stores.all_models()))
        await again.run()
        assert again.state.was_here is not header
        found = [found_in(stores, name) for name in (by_name, NAME, digits)]
        assert found == [[again.state.paths]] * 3
        assert list(map(str, names_of(again.state.paths))) == [digits, by_name]


@pytest.mark.parametrize("digits", [64, 32])
def test_digits_are_no_files_name_on_this_machine(tmp_path: Path, digits: int) -> None:
    name = WANTED.hex()[:digits]
    put(stores_of(tmp_path).meshd / f"mesh-1/{name}.gguf", tiny())
    assert found_by(tmp_path, f"mesh:{name}") == []
    path = pulled(stores_of(tmp_path).meshd / "mesh-2/tiny-Q8_0.gguf", tiny(), "mesh:tiny-Q8_0")
    assert found_by(tmp_path, "mesh:tiny-q8_0") == [(path,)]
