"""Models made of chance are ones: their header passes, their weights are spread as they should be."""

import struct
from io import BytesIO
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.model.gguf import Header, read_header
from meshd.model.layers import read_layers

from tests.bench.random_model import HEAD_ELEMENTS, SHAPES, Shape, random_model, write_model

SHAPE = Shape(layers=2, width=256, inner=512, heads=2, kv_heads=1, vocabulary=512)


def written(shape: Shape = SHAPE) -> bytes:
    file = BytesIO()
    write_model(file, shape, name="chance")
    return file.getvalue()


def header_of(data: bytes) -> Header:
    return read_header(lambda offset, size: data[offset : offset + size], size=len(data), label="chance")


def test_the_header_is_one_of_a_llama() -> None:
    header = header_of(written())
    assert header.text("general.architecture") == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert len(header.tensors) == 3 + 2 * 9
    kinds = {tensor.name: (tensor.kind.name, tensor.dims) for tensor in header.tensors}
    assert kinds["token_embd.weight"] == ("q4_0", (256, 512))
    assert kinds["blk.1.attn_k.weight"] == ("q4_0", (256, HEAD_ELEMENTS))
    assert kinds["blk.0.ffn_down.weight"] == ("q4_0", (512, 256))
    assert kinds["output_norm.weight"][0] == "f32"
    assert len(read_layers([header], name="chance").layers) == 2


def test_experts_are_one_tensor_of_a_layer() -> None:
    mixed = Shape(
        layers=1, width=256, inner=512, heads=2, kv_heads=1, vocabulary=512, experts=4, experts_used=2
    )
    header = header_of(written(mixed))
    assert header.metadata["llama.expert_count"] == 4 and header.metadata["llama.expert_used_count"] == 2
    dims = {tensor.name: tensor.dims for tensor in header.tensors}
    assert dims["blk.0.ffn_gate_inp.weight"] == (256, 4)
    assert dims["blk.0.ffn_down_exps.weight"] == (512, 256, 4)
    assert "blk.0.ffn_down.weight" not in dims


def test_the_same_file_each_time_and_no_two_tensors_alike() -> None:
    data = written()
    assert data == written()
    bodies = [data[tensor.offset : tensor.offset + tensor.size] for tensor in header_of(data).tensors]
    assert len(set(bodies)) == len(bodies)


def test_weights_have_mean_zero_and_the_size_that_keeps_a_result_as_large_as_what_comes_in() -> None:
    data = written()
    [tensor] = [one for one in header_of(data).tensors if one.name == "blk.0.ffn_up.weight"]
    values: list[float] = []
    for at in range(tensor.offset, tensor.offset + tensor.size, 18):
        scale, *packed = struct.unpack_from("<e16B", data, at)
        values += [scale * ((one & 15) - 8) for one in packed] + [scale * ((one >> 4) - 8) for one in packed]
    mean = sum(values) / len(values)
    spread = (sum(value * value for value in values) / len(values)) ** 0.5
    assert len(values) == 256 * 512
    assert abs(mean) < 0.02 * spread
    assert spread * 256**0.5 == pytest.approx(1.0, rel=0.02)


def test_shapes_fit_their_heads() -> None:
    for shape in SHAPES.values():
        assert shape.width == shape.heads * HEAD_ELEMENTS
        assert shape.heads % shape.kv_heads == 0


def test_a_file_is_made_once_and_only_of_a_known_name(tmp_path: Path) -> None:
    place = random_model("tiny", tmp_path)
    made = place.stat().st_mtime_ns
    assert random_model("tiny", tmp_path) == place
    assert place.stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    with pytest.raises(UserError, match="there is no model `huge`"):
        random_model("huge", tmp_path)
