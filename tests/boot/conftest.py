"""Machines that systemd boots; their tests are left out where none can be booted, with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.config.tree import Paths
from meshd.daemon.native import natives_here

from tests.boot.installed import fresh_machine, lacking
from tests.boot.machine import Machine, skip_reason, switched_on
from tests.boot.scenes import MODEL
from tests.e2e.models import cache_folder, smollm2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder (the hook sees those of the whole run)."""
    here = [item for item in items if "tests/boot/" in item.nodeid]
    if not here:
        return
    reason = skip_reason() or lacking()
    for item in here:
        item.add_marker(pytest.mark.root)
        item.add_marker(pytest.mark.timeout(600))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with meshd, without llama.cpp."""
    with switched_on(fresh_machine(tmp_path / "machine", {})) as machine:
        yield machine


@pytest.fixture
def computing_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with meshd, llama.cpp and a model."""
    native = natives_here(Paths(cache=cache_folder()), head=True)[0]
    programs = (native.llama_server.parent, native.mesh_server.parent)
    with switched_on(fresh_machine(tmp_path / "machine", {smollm2(): MODEL}, programs)) as machine:
        yield machine
