"""With how many threads a worker's CPU computes."""

import pytest
from meshd.worker import worker_options
from meshd.worker.worker_options import WorkerOptions


@pytest.mark.parametrize(("usable", "threads"), [(2, 2), (1, 1), (32, 32), (64, 32)])
def test_half_of_the_processors_but_no_more_than_it_may_use(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(worker_options, "usable_processors", lambda: usable)
    assert WorkerOptions().cpu_threads == threads
    assert WorkerOptions(threads=5).cpu_threads == 5, "what the user asks for"
