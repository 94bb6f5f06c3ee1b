"""The files made from the schema: the C++ header, the Python tables, the page."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.native.cpp_header import cpp_header
from tests.native.page import page
from tests.native.python_tables import python_tables
from tests.native.schema import ROOT, Schema

GENERATED: Mapping[Path, Callable[[Schema], str]] = {
    ROOT / "native" / "mesh" / "protocol.h": cpp_header,
    ROOT / "meshd" / "rpc" / "mesh_protocol.py": python_tables,
    ROOT / "docs" / "native-protocol.md": page,
}
