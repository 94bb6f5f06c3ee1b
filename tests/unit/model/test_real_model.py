"""Our header parser against upstream's Python reader, on a file that upstream's writer made."""

from pathlib import Path

import gguf
import numpy
import pytest
from meshd.model.ggml import TENSOR_TYPES
from meshd.model.gguf import read_header
from meshd.model.layers import read_layers


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(3)
    writer.add_context_length(8192)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count([8, 4, 8])
    writer.add_head_count_kv(2)
    writer.add_token_list([f"token {number}" for number in range(500)])
    writer.add_token_scores([float(number) for number in range(500)])
    writer.add_custom_alignment(64)
    random = numpy.random.default_rng(1)

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> None:
        values = random.standard_normal(shape, dtype=numpy.float32)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", 500, 256, kind=gguf.GGMLQuantizationType.Q8_0)
    for layer in range(3):
        add(f"blk.{layer}.attn_norm.weight", 256)
        add(f"blk.{layer}.attn_q.weight", 256, 256, kind=gguf.GGMLQuantizationType.Q4_0)
        add(f"blk.{layer}.ffn_up.weight", 512, 256, kind=gguf.GGMLQuantizationType.BF16)
    add("output_norm.weight", 256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_agrees_with_upstreams_reader(written: Path) -> None:
    data = written.read_bytes()
    header = read_header(lambda at, count: data[at : at + count], size=len(data), label=written.name)
    reader = gguf.GGUFReader(str(written))
    theirs = [
        (
            tensor.name,
            int(tensor.tensor_type),
            tuple(int(dim) for dim in tensor.shape),
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        for tensor in reader.tensors
    ]
    ours = [
        (tensor.name, tensor.kind.number, tensor.dims, tensor.offset, tensor.size)
        for tensor in header.tensors
    ]
    assert ours == theirs
    assert set(header.metadata) == {name for name in reader.fields if not name.startswith("GGUF.")}
    assert header.alignment == 64
    assert header.array("llama.attention.head_count") == (8, 4, 8)
    assert header.length("tokenizer.ggml.tokens") == 500
    model = read_layers([header], name="model")
    assert (model.count, model.tied, model.trained_context, model.widths.vocabulary) == (3, True, 8192, 500)


def test_types_agree_with_upstreams_table() -> None:
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        if kind == gguf.GGMLQuantizationType.Q8_1:
            continue  # for computing only, never in a file; upstream's own two tables differ on it
        ours = TENSOR_TYPES[int(kind)]
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name.lower(), elements, size)
