"""Models of members that this machine has under another name: they are used, and nothing is fetched."""

from pathlib import Path

import pytest
from meshd.library.interface import StoredModel
from meshd.library.members.pull import HeaderPull, ModelPull, PullStep, may_be_elsewhere, same_model
from meshd.library.stores import of_path
from meshd.model.model_name import parse_model_name
from meshd.store.hash_cache import FileState, HashCache, PieceCache
from meshd.wire.models import ToldModel

from tests.gguf_bytes import parse
from tests.unit.library.members.exchange_scene import NAME, Scene, scene
from tests.unit.library.members.test_pull_trust import WANTED, other
from tests.unit.library.members.told_member import Member, fingerprint_of, index_of, large
from tests.unit.library.models import put
from tests.unit.store.header_files import hashes_of

CONTENT = index_of(large()).content
NAMES = (NAME, "hf:me/Big-GGUF:big-Q8_0.gguf")


def mine(it: Scene, data: bytes, *known: str) -> StoredModel:
    """A file of the taker's user, far from meshd's folders, of which so much is known."""
    path = put(it.folder / "elsewhere/mine.gguf", data)
    hashes = HashCache(it.folder / "taker/weights")
    if "fingerprint" in known:
        hashes.save(FileState.at(path), parse(data), hashes_of(data))
    if "content" in known:
        PieceCache(it.folder / "taker/pieces", hashes).save([FileState.at(path)], index_of(data))
    return of_path(path)


def has_not_fetched(pull: ModelPull, model: StoredModel) -> bool:
    if not pull.state.was_here:
        assert pull.state.paths != model.paths and any(one.bytes for one in pull.state.holders.values())
        return False
    assert pull.state.step is PullStep.DONE and pull.state.paths == model.paths
    assert pull.state.done == pull.state.before == pull.state.total == model.size
    assert not pull.state.holders
    return True


@pytest.mark.parametrize(
    ("known", "told", "name", "used"),
    [
        ("fingerprint", "fingerprint", f"mesh:{NAME}", True),
        ("fingerprint", "fingerprint", NAME, True),
        ("fingerprint", "fingerprint", f"mesh:{WANTED.hex()}", True),
        ("fingerprint", "", f"mesh:{NAME}", False),
        ("", "fingerprint", f"mesh:{NAME}", False),
        ("fingerprint", "fingerprint", "hf:me/Big-GGUF:big-Q8_0.gguf", False),
        ("content", "content", f"mesh:{NAME}", True),
        ("content", "content", f"mesh:{CONTENT.hex()}", True),
        ("content", "fingerprint", f"mesh:{NAME}", False),
    ],
)
async def test_the_same_content_is_used_where_it_is(
    tmp_path: Path, known: str, told: str, name: str, used: bool
) -> None:
    async with scene(tmp_path) as it:
        fingerprint = WANTED if told == "fingerprint" else b""
        content = CONTENT if told == "content" else b""
        Member(large(), hashes_of(large()), fingerprint, content, NAMES).speaks_for(it.mute("a"))
        model = mine(it, large(), known)
        pull = it.pull(name, own=[model])
        await pull.run()
        assert has_not_fetched(pull, model) is used
        assert used is not (tmp_path / "taker/models").exists()


@pytest.mark.parametrize("name", [f"mesh:{NAME}", f"mesh:{WANTED.hex()}"])
async def test_another_model_of_that_size_is_not_used(tmp_path: Path, name: str) -> None:
    """Nor is it if a member says of what was asked for by digits that it is this one, too."""
    async with scene(tmp_path) as it:
        lie = index_of(other()).content if name.startswith(f"mesh:{WANTED.hex()}") else b""
        Member(large(), hashes_of(large()), WANTED, lie).speaks_for(it.mute("liar"))
        Member(large(), hashes_of(large()), WANTED).speaks_for(it.mute("a"))
        model = mine(it, other(), "fingerprint", "content")
        pull = it.pull(name, own=[model])
        await pull.run()
        assert not has_not_fetched(pull, model) and pull.state.fingerprint == WANTED.hex()


async def test_of_a_model_that_is_here_no_header_is_taken(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Member(large(), hashes_of(large()), WANTED).speaks_for(it.mute("a"))
        model = mine(it, large(), "fingerprint")
        place = it.place([model])
        pull = HeaderPull(it.taker, parse_model_name(f"mesh:{NAME}"), place)
        await pull.run()
        assert has_not_fetched(pull, model)


async def test_one_member_alone_cannot_say_that_a_name_means_a_model_of_this_machine(tmp_path: Path) -> None:
    """Another one has it, and has not hashed its tensors yet."""
    async with scene(tmp_path) as it:
        lie = bytes.fromhex(fingerprint_of(other()))
        Member(large(), (), lie).speaks_for(it.mute("liar"))
        Member(large(), hashes_of(large()), b"", CONTENT).speaks_for(it.mute("honest"))
        model = mine(it, other(), "fingerprint", "content")
        pull = it.pull(f"mesh:{NAME}", own=[model])
        await pull.run()
        assert not has_not_fetched(pull, model) and pull.state.fingerprint == WANTED.hex()


@pytest.mark.parametrize("text", ["glm", "glm.gguf", "GLM.GGUF", "qwen3.gguf", "hf:me/Big-GGUF:Q8_0"])
def test_what_is_compared_with_the_hub_is_never_a_file_of_the_user(text: str) -> None:
    """Test which names are never compared with the hub, for what differs from its file is removed."""
    assert not may_be_elsewhere(parse_model_name(text))


class Own:
    """A file of the user, of which so much is known, and what members tell of it."""

    def __init__(self, folder: Path, *known: str) -> None:
        self.data = large()
        path = put(folder / "mine.gguf", self.data)
        self.hashes = HashCache(folder / "weights")
        self.pieces = PieceCache(folder / "pieces", self.hashes)
        if "fingerprint" in known:
            self.hashes.save(FileState.at(path), parse(self.data), hashes_of(self.data))
        if "content" in known:
            self.pieces.save([FileState.at(path)], index_of(self.data))
        self.model = of_path(path)

    def found(self, *told: ToldModel, all_agree: bool = False, wished: bool = True) -> str | None:
        """Return the fingerprint that comes with the model; None where it is not the same."""
        asked: list[tuple[str, str]] = []

        def is_wished(fingerprint: str, content: str) -> bool:
            asked.append((fingerprint, content))
            return wished

        same = same_model(told, [self.model], self.pieces, is_wished=is_wished, all_agree=all_agree)
        assert same is None or (same[0] is self.model and asked[0][0] == same[1])
        return None if same is None else same[1]

    def told(self, *, fingerprint: bytes = b"", content: bytes = b"", size: int = 0) -> ToldModel:
        size = size or len(self.data)
        return ToldModel(bytes(16), ("m",), size, 1, "Q8_0", "llama", fingerprint, content)


RIGHT = bytes.fromhex(fingerprint_of(large()))


def test_a_model_is_the_same_by_its_fingerprint(tmp_path: Path) -> None:
    own = Own(tmp_path, "fingerprint")
    right, wrong = own.told(fingerprint=RIGHT), own.told(fingerprint=bytes(len(RIGHT)))
    assert own.found(right) == own.found(wrong, right) == RIGHT.hex()
    assert own.found(own.told(fingerprint=RIGHT, size=5)) == RIGHT.hex()
    assert own.found(wrong) is own.found(own.told()) is own.found() is None
    assert own.found(right, wished=False) is None
    assert own.found(right, wrong, all_agree=True) is None
    assert own.found(right, right, all_agree=True) == RIGHT.hex()
    assert Own(tmp_path / "unknown").found(right, own.told()) is None


def test_a_model_is_the_same_by_its_content_and_size(tmp_path: Path) -> None:
    own = Own(tmp_path, "content")
    right = own.told(content=CONTENT)
    assert own.found(right) == "", "its fingerprint is not known"
    assert own.found(own.told(content=CONTENT, size=5)) is None
    assert own.found(own.told(content=bytes(len(CONTENT)))) is None
    assert own.found(own.told()) is None
    assert own.found(right, own.told(), all_agree=True) is None
    assert Own(tmp_path / "unknown").found(right) is None
    assert Own(tmp_path / "both", "content", "fingerprint").found(right) == RIGHT.hex()
