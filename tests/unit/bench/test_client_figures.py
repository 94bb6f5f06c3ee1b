"""Test what the measurement of many clients says."""

import pytest

from tests.bench.client_figures import ClientCount, ClientFigures, complaints, lines, spread
from tests.bench.many_clients import report
from tests.bench.program import run_program


def client(model: str, tokens: int, *waits: float, errors: tuple[str, ...] = ()) -> ClientCount:
    return ClientCount(model, answers=len(waits), tokens=tokens, errors=list(errors), waits=list(waits))


def figures(
    *clients: ClientCount, memory: tuple[int, ...] = (70_000_000,), daemon: float = 1.0
) -> ClientFigures:
    return ClientFigures(
        seconds=60.0,
        clients=clients,
        daemon_seconds=daemon,
        server_seconds=50.0 - daemon,
        memory=memory,
        loads=3,
    )


def test_what_is_printed() -> None:
    found = figures(client("a", 80, 0.5, 7.0), client("a", 100, 1.0), client("b", 0, errors=("cut", "cut")))
    assert list(lines(found)) == [
        "3 clients, 60 s: 3 answers, 180 tokens (3/s), 3 loads, 2 errors",
        "a: 2 clients, 80 to 100 tokens each (spread 20%), first token after 1.0 s, at most 7.0",
        "b: 1 clients, 0 to 0 tokens each (spread 0%), first token after none came",
        "daemon: 5556 us of CPU time a token, 2.0% of that of daemon and llama-servers; "
        "memory 70.0 MB at the end, +0.0 MB since the 2nd quarter",
        "error: cut",
    ]


def test_what_must_not_be() -> None:
    even = (client("a", 80), client("a", 100), client("b", 5))
    assert list(complaints(figures(*even))) == []
    assert list(complaints(figures(*even, client("b", 4, errors=("cut", "cut"))))) == ["2 errors"]
    uneven = figures(client("a", 79), client("a", 100), client("b", 0), client("b", 7), client("c", 0))
    assert list(complaints(uneven)) == [
        "clients of a differ by 21%, more than 20%",
        "clients of b differ by 100%, more than 20%",
    ]


def test_what_the_daemon_may_not_take() -> None:
    one = client("a", 80)
    assert list(complaints(figures(one, daemon=1.5))) == []
    assert list(complaints(figures(one, daemon=1.6))) == [
        "the daemon took 3.2% of the CPU time, more than 3%"
    ]
    steady, grown = (70_000_000, 71_000_000, 80_000_000, 81_000_000), (7, 71_000_000, 80, 81_500_000)
    assert list(complaints(figures(one, memory=steady))) == []
    assert list(complaints(figures(one, memory=grown))) == [
        "the daemon's memory grew by 10.5 MB, more than 10 MB"
    ]


def test_it_ends_with_1_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    async def measured(*clients: ClientCount) -> None:
        report(figures(*clients))

    assert run_program(measured(client("a", 80))) == 0
    with pytest.raises(SystemExit, match="error: no client got a token\n\nhint: a longer run") as ended:
        run_program(measured(client("a", 0)))
    assert isinstance(ended.value.code, str), "the interpreter prints it, and exits with 1"
    assert capsys.readouterr().out.count("1 clients, 60 s") == 2


@pytest.mark.parametrize(("counts", "share"), [([], 0.0), ([0, 0], 0.0), ([0, 5], 1.0), ([75, 100], 0.25)])
def test_the_spread_is_of_the_first(counts: list[int], share: float) -> None:
    assert spread(counts) == share


def test_memory_that_is_kept_from_the_beginning_is_no_growth() -> None:
    assert figures(memory=(10, 20, 30, 30, 31, 30, 31, 30)).growth == 0
    assert figures(memory=(10, 20, 30, 30, 40, 50, 60, 60)).growth == 30
    assert figures(memory=(10, 20)).growth == 0
