"""Cards that fail their trial, are there twice, or compute as they should; and the program's own trial."""

from pathlib import Path

import pytest
from meshd.model.cache import ContextShape
from meshd.model.layer_work import USUAL, operations

from tests.e2e import half_mesh, random_models
from tests.e2e.alone import alone
from tests.e2e.api_client import generation
from tests.e2e.left_out import ready_without, servers_started, with_a_good_one
from tests.e2e.models import header_of, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.trial_lines import trial

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
]

SHAPE = ContextShape(1024)
ROUNDS = "mul_mat:q4_k:512"  # which the plain kernel rounds otherwise than the fast one
CRASH = ("kill -SEGV $$", "its trial was ended by SIGSEGV while it computed rope:64:9:64")


def cards_that(then: str, count: int = 1) -> str:
    """A program for `half_mesh.install`, which lists so many devices of one card as well.

    In the trial of one it does `then`.
    """
    lines = [f"device CARD{n} gpu 0000:01:00.0 {8 << 30} {8 << 30} no card" for n in range(count)]
    listed = "; ".join(f'echo "{line}"' for line in lines)
    return (
        "#!/bin/sh\n"
        f'if [ "$1" = --list-devices ]; then {listed}; fi\n'
        f'if [ "$1" = --try-device ]; then echo trying rope:64:9:64; {then}; fi\n'
        f"exec '{half_mesh.real_program()}' \"$@\"\n"
    )


def test_the_others_serve_without_it(tmp_path: Path) -> None:
    """Test one failed trial; tests/unit/devices/test_trial_report.py has what else a trial may find."""
    then, why = CRASH
    reference = alone(smollm2(), 16)
    cache = half_mesh.install(tmp_path / "cache", cards_that(then))

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, half = await with_a_good_one(fleet, cache)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            status = await ready_without(head)
            assert f"half CARD0 left out: {why}" in model_of(status).reason
            assert await api_of(status).complete(PROMPT, 16) == reference
            told = await half.until(lambda s: any(w.code == "device_unfit" for w in s.warnings))
            assert any(why in warning.what for warning in told.warnings)
            for node, word in ((head, "status"), (half, "doctor")):
                shown = await cli(node.spec.home, word, MESHD_CACHE=str(node.spec.cache))
                assert why in " ".join(shown.stdout.split())
            assert servers_started(half) == 0

    play(check())


def test_alone_it_is_waited_for_and_its_reason_told(tmp_path: Path) -> None:
    cache = half_mesh.install(tmp_path / "cache", cards_that(CRASH[0]))

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            half = await fleet.worker("half", model=smollm2(), cache=cache)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=await half.token())
            told = f"half CARD0: {CRASH[1]}"
            await head.until(lambda s: s.model is not None and told in s.model.reason)
            status = await head.until(lambda s: s.api is not None)  # it opens beside the first questions
            assert model_of(status).state == "waiting"
            answer = await api_of(status).ask("POST", "/completion", generation(PROMPT, 1))
            assert (answer.status, told in str(answer.body)) == (503, True)
            assert servers_started(half) == 0

    play(check())


def test_a_card_with_two_names_is_lent_once(tmp_path: Path) -> None:
    """As far as a card that is not there can be: the first name's trial is passed, by the CPU."""
    program = cards_that(f"exec '{half_mesh.real_program()}' --try-device CPU --try \"$4\"", 2)
    cache = half_mesh.install(tmp_path / "cache", program)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            half = await fleet.worker("half", model=smollm2(), cache=cache)
            token = await half.token()
            await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            told = await half.until(lambda s: any(w.code == "device_unfit" for w in s.warnings))
            (warning,) = [one for one in told.warnings if one.code == "device_unfit"]
            assert warning.what == "device CARD1 is not used: it is the same card as CARD0"
            trial = (half.spec.home / "logs" / "device-trial.log").read_text()
            assert "right rope:64:9:64" in trial
            assert trial.count("trying rope:64:9:64") == 2, (
                "once by the card, and once by the CPU in its place"
            )

    play(check())


# The real program.


def test_what_models_need_is_known_to_the_program() -> None:
    """On the processor, whose fast kernels are compared with its plain ones."""
    headers = [header_of(random_models.random_model(name)) for name in sorted(random_models.MODELS)]
    words = [word for header in [*headers, header_of(smollm2())] for word in operations([header], SHAPE)]
    wanted = list(dict.fromkeys([*words, *USUAL]))
    assert len(wanted) > 40
    code, found = trial(half_mesh.real_program(), "CPU", wanted)
    assert (code, list(found)) == (0, wanted)
    assert {word for word, (verdict, _) in found.items() if verdict != "right"} == set()


def test_results_are_compared_and_devices_looked_up() -> None:
    code, found = trial(half_mesh.real_program(), "CPU", [ROUNDS, "rms_norm:512"], "--try-tolerance", "0")
    verdict, (error, allowed) = found[ROUNDS][0], found[ROUNDS][1].split()
    assert (code, verdict, float(allowed)) == (2, "wrong", 0.0)
    assert 0.0 < float(error) < 1e-6
    assert found["rms_norm:512"][0] == "right"
    assert trial(half_mesh.real_program(), "GPU7", ["sums:64"]) == (1, {})
