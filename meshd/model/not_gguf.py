"""Identify a file that should be a GGUF file but is not, from its first bytes.

People save a login page under the name of a model, clone a repository without Git LFS, or download another
format from the same repository.
"""

import re
from collections.abc import Callable

LOOKED_AT = 1024  # bytes at the beginning of the file

FORMAT_HINT = "meshd reads models in llama.cpp's GGUF format (*.gguf)"
_CONVERT_HINT = "download the model as GGUF, or convert it with llama.cpp's `convert_hf_to_gguf.py`"
_TITLE = re.compile(r"<title[^>]*>([^<]{1,200})</title", re.IGNORECASE)
_LFS_SIZE = re.compile(rb"^size ([0-9]{1,15})$", re.MULTILINE)
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_PYTORCH = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
_OLD_GGML = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # `ggml`, `ggmf`, `ggjt`, `ggla` as little-endian numbers


def what_it_is(head: bytes) -> tuple[str, str]:
    """Return what the file is, and a hint, from up to LOOKED_AT bytes that do not begin with `GGUF`."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for fits, name in _KINDS:
        if fits(head, text):
            return name(head)
    magic = head[:4]
    is_text = magic.isascii() and magic.decode().isprintable()
    seen = magic.decode() if is_text else magic.hex()
    return f"not a GGUF file: it begins with `{seen}`, expected `GGUF`", FORMAT_HINT


def _lfs_pointer(head: bytes) -> tuple[str, str]:
    size = _LFS_SIZE.search(head)
    of = f" of {int(size[1])} bytes" if size is not None else ""
    what = f"it is a Git LFS pointer to a file{of}, not that file"
    return what, "run `git lfs pull` in the clone, or download the file itself: `meshd model pull`"


def _annex_pointer(_head: bytes) -> tuple[str, str]:
    return "it is a git-annex pointer, not the file itself", "run `git annex get` on it"


def _web_page(head: bytes) -> tuple[str, str]:
    title = _TITLE.search(head.decode("utf-8", "replace"))
    words = " ".join("".join(c for c in title[1] if c.isprintable() or c.isspace()).split()) if title else ""
    called = f" (`{words[:60]}`)" if words else ""
    what = f"it is a web page{called}, not a model"
    return what, "download the file again: the server wants a login, or the address was that of a page"


def _error_document(_head: bytes) -> tuple[str, str]:
    what = "it is a text document (XML or JSON), such as a server's error message, not a model"
    return what, "open it to read what the server said, then download the file again"


def _safetensors(_head: bytes) -> tuple[str, str]:
    return "it is a model in the safetensors format, not GGUF", _CONVERT_HINT


def _pytorch(_head: bytes) -> tuple[str, str]:
    return "it is a ZIP archive or a PyTorch file, not GGUF", _CONVERT_HINT


def _old_ggml(_head: bytes) -> tuple[str, str]:
    return "it is in a llama.cpp format older than GGUF", "download the model again, as GGUF"


_KINDS: tuple[tuple[Callable[[bytes, bytes], bool], Callable[[bytes], tuple[str, str]]], ...] = (
    (lambda _, text: text.startswith(b"version https://git-lfs.github.com/spec/"), _lfs_pointer),
    (lambda _, text: text.startswith(b"/annex/objects/"), _annex_pointer),
    (lambda _, text: text.startswith(_HTML) or (text.startswith(b"<") and b"<html" in text), _web_page),
    (lambda _, text: text.startswith((b"<?xml", b"{")), _error_document),
    (lambda head, _: head[8:9] == b"{" and head[5:8] == bytes(3), _safetensors),
    (lambda head, _: head.startswith(_PYTORCH), _pytorch),
    (lambda head, _: head.startswith(_OLD_GGML), _old_ggml),
)
