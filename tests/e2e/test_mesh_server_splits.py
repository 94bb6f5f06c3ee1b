"""native/mesh: each device is fed once in a step, in models of every kind, and no cache crosses.

What the scheduler says (`GGML_SCHED_DEBUG`) of a token. The module says which operations it does not take.
"""

import re
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER

from tests.e2e.mesh_rig import CountedPair, MeshHead, MeshServer
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import stock
from tests.e2e.native_rig import Handed, Report, wait_until
from tests.e2e.random_models import MODELS, random_model
from tests.e2e.random_parts import LAYERS
from tests.native import build as native_build

pytestmark = [
    *MARKS,
    pytest.mark.skipif(
        native_build.other() is not None, reason="earlier releases name tensors in another way"
    ),
]
_PIECE = re.compile(r"## SPLIT #(\d+): (\w+)\S* # \d+ inputs:? ?(.*)$", re.MULTILINE)
# what the head makes for each step; what llama.cpp calls the embeddings, a sum at the end of a layer, and the
# norm behind it. RWKV 7's layers all use a value of the first one, which has no name
_GIVEN = re.compile(r"(attn_)?inp_(?!scaled)|rs_s_copy|out_ids")
_END_OF_LAYER = re.compile(r"embd|inp_scaled|model.embed_tokens|l_out-\d+|norm$|norm-[1-9]|node_\d+$")
TRIES = 3  # another thread may write in the middle of a line of the log; what is wrong is so each time
_STAMP = re.compile(r"\d\.\d\d\.\d{3}\.\d{3} D ")  # before each part of a line


class TalkingHead(MeshHead):
    """Its log has the pieces of each graph."""

    def hand_over(self, handed: Handed, env: dict[str, str]) -> Report | None:
        env["GGML_SCHED_DEBUG"] = "2"
        return super().hand_over(handed, env)

    def last_pieces(self, answers: int) -> list[tuple[str, str]]:
        """Device and inputs of each piece of the last graph, after so many answers."""
        wait_until(
            lambda: self.output.count("slot      release") >= answers, "the end of the answer in the log"
        )
        pieces: list[tuple[str, str]] = []
        for found in _PIECE.finditer(_STAMP.sub("", self.output)):
            if found[1] == "0":
                pieces.clear()
            pieces.append((found[2], found[3]))
        return pieces


def _computed(inputs: str) -> list[str]:
    """Names of those inputs of a piece that another piece has computed."""
    names = re.findall(r"\[(.+?) \(\s*\d+K\)\]", inputs)
    return [name for name in names if not _GIVEN.match(name)]


def _is_wrong(pieces: list[tuple[str, str]]) -> bool:
    """Return True if a device gets results of others more than once, or else than the end of a layer.

    Beside the piece with its layers, a device may have one that only prepares states.
    """
    fed = [(device, _computed(inputs)) for device, inputs in pieces if _computed(inputs)]
    unlike = [name for _, names in fed for name in names if not _END_OF_LAYER.match(name)]
    return bool(unlike) or [device for device, _ in fed] != ["MESH0", "MESH1"]


@pytest.mark.parametrize("name", MODELS)
def test_each_device_is_fed_once_and_no_cache_crosses(tmp_path: Path, name: str) -> None:
    """With every border that two workers and the head can have; the head's CPU begins."""
    build, wrong = found_build(), {}
    for on_workers in range(2, LAYERS + 2):
        pairs = CountedPair(), CountedPair()
        extra = ("-ngl", str(on_workers), "-ts", "1,1", "-fa", "on", "-v")
        with (
            MeshServer(build, tmp_path, pairs[0]),
            MeshServer(build, tmp_path, pairs[1]),
            TalkingHead(
                build, tmp_path, random_model(name), pairs, binary=stock().binaries[LLAMA_SERVER], extra=extra
            ) as head,
        ):
            for answer in range(1, TRIES + 1):
                head.complete(tokens=2)
                pieces = head.last_pieces(answer)
                if not _is_wrong(pieces):
                    break
        for pair in pairs:
            pair.close()
        if _is_wrong(pieces):
            wrong[on_workers] = pieces
    assert wrong == {}
