"""The import contracts of pyproject.toml, each by itself, with imports that are not there."""

import copy
import functools

import grimp
from importlinter import Contract
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

from tests.rules.source import ROOT

_TYPES: dict[str, type[Contract]] = {
    "forbidden": ForbiddenContract,
    "layers": LayersContract,
    "protected": ProtectedContract,
}


@functools.cache
def contracts() -> dict[str, Contract]:
    """Return the contracts by name."""
    read = read_configuration(str(ROOT / "pyproject.toml"))
    return {
        options["name"]: _TYPES[options["type"]](options["name"], read["session_options"], options)
        for options in read["contracts_options"]
    }


@functools.cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("meshd", include_external_packages=True, cache_dir=None)


def keeps(name: str, importer: str, imported: str) -> bool:
    """Would this contract still be kept, if `importer` imported `imported`?"""
    graph = copy.deepcopy(_graph())
    assert {importer, imported} <= graph.modules, "a sample names what is not there"
    graph.add_import(importer=importer, imported=imported)
    return contracts()[name].check(graph, verbose=False).kept
