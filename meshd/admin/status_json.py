"""The status as JSON, for scripts and the page of the mesh: docs/status.md describes its fields."""

from collections.abc import Mapping
from dataclasses import replace

from meshd.admin.request import Json, to_fields
from meshd.admin.status import Status
from meshd.build.interface import MESH_PROGRAM, NAME_IN_SCRIPTS


def for_scripts(status: Status) -> Mapping[str, Json]:
    """Return the fields of docs/status.md, in which a worker's mesh-server has the name that scripts know."""
    children = [
        replace(child, name=NAME_IN_SCRIPTS) if child.name == MESH_PROGRAM else child
        for child in status.children
    ]
    return to_fields(replace(status, children=tuple(children)))
