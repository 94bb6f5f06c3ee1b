"""Which draft models fit, and what they take of the head."""

import pytest
from meshd.base.errors import UserError
from meshd.model.cache import ContextShape
from meshd.plan.wishes import beside_draft, draft_model
from meshd.wire.lease import OfferedDevice

from tests.gguf_bytes import gguf, language_model, parse

GIB = 1 << 30
DRAFT = parse(gguf(*language_model(layers=2)))
SERVED = parse(gguf(*language_model(layers=4)))


def test_one_of_the_same_vocabulary_fits_and_takes_memory_of_the_heads_cpu() -> None:
    draft = draft_model("/m/d.gguf", "d", [DRAFT], SERVED)
    shape = ContextShape(1024, parallel=2)
    assert draft.memory(shape) > draft.layers.weight_bytes > 0
    own = (
        OfferedDevice("CPU", "cpu", "some", GIB, 2 * GIB),
        OfferedDevice("CUDA0", "gpu", "some", GIB, 2 * GIB),
    )
    cpu, gpu = beside_draft(own, draft, shape)
    assert GIB - cpu.free_bytes == draft.memory(shape)
    assert gpu.free_bytes == GIB
    assert beside_draft(own, None, shape) == own


def test_one_of_another_vocabulary_is_refused_with_both() -> None:
    metadata, tensors = language_model(layers=2)
    other = parse(gguf({**metadata, "tokenizer.ggml.model": "llama"}, tensors))
    with pytest.raises(UserError, match="another vocabulary") as caught:
        draft_model("/m/o.gguf", "o.gguf", [other], SERVED)
    assert "o.gguf" in caught.value.what and caught.value.hint
