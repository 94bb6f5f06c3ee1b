"""What a file is that was meant to be a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.not_gguf import LOOKED_AT, what_it_is

LFS = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 4920734272
"""
LOGIN = b"""\xef\xbb\xbf
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in
 \x1b[31m&middot; Example</title></head><body>"""


@pytest.mark.parametrize(
    ("head", "what", "hint"),
    [
        (LFS, "it is a Git LFS pointer to a file of 4920734272 bytes, not that file", "git lfs pull"),
        (
            b"/annex/objects/SHA256E-s1--ab.gguf\n",
            "it is a git-annex pointer, not the file itself",
            "annex get",
        ),
        (LOGIN, "it is a web page (`Sign in [31m&middot; Example`), not a model", "login"),
        (b"<html><body>no", "it is a web page, not a model", "login"),
        (b"<!-- saved -->\n<HTML>", "it is a web page, not a model", "login"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied', "it is a text document (XML or JSON)", "open it"),
        (b'{"error":"Repository not found"}', "it is a text document (XML or JSON)", "open it"),
        (b'\x10\x27\0\0\0\0\0\0{"__metadata__":{}', "it is a model in the safetensors format", "convert"),
        (b"PK\x03\x04\0\0", "it is a ZIP archive or a PyTorch file, not GGUF", "convert"),
        (b"\x80\x02}q", "it is a ZIP archive or a PyTorch file, not GGUF", "convert"),
        (b"tjgg\x03\0\0\0", "it is in a llama.cpp format older than GGUF", "as GGUF"),
        (b"hello", "not a GGUF file: it begins with `hell`, expected `GGUF`", "*.gguf"),
    ],
)
def test_it_is_named(head: bytes, what: str, hint: str) -> None:
    found, todo = what_it_is(head)
    assert found.startswith(what)
    assert hint in todo


@given(
    st.one_of(
        st.binary(max_size=LOOKED_AT),
        st.sampled_from([LFS, LOGIN]).flatmap(
            lambda start: st.binary(max_size=200).map(lambda end: start + end)
        ),
    )
)
def test_any_beginning_is_named_in_one_line(head: bytes) -> None:
    for text in what_it_is(head):
        assert text.isprintable()
        assert 0 < len(text) < 200
