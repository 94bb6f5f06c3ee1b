"""What is known of a model's tensors without reading them."""

from pathlib import Path

from meshd.store.hash_cache import FileState, HashCache
from meshd.store.model_file import ModelFile

from tests.gguf_bytes import gguf, language_model


async def test_it_is_what_was_read_before_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf(*language_model()))
    cache = HashCache(tmp_path / "hashes")

    file = await ModelFile.open(tmp_path / "a.gguf", cache=cache)
    try:
        assert file.known_index() is None
        index = await file.index()
        digests = [tensor.digest for tensor in index.tensors]
        # as index() does where the file was not written just now
        cache.save(FileState.of(file.descriptors[0]), file.headers[0], digests)
        assert file.known_index() == index
    finally:
        file.close()
