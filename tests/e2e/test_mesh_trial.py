"""Nodes with a worker whose card fails its trial: the others serve, it starts no rpc-server and says why."""

import json
import stat
from pathlib import Path

import pytest
from meshd.build.interface import RPC_SERVER

from tests.e2e.alone import alone
from tests.e2e.api_client import generation
from tests.e2e.half_able import install
from tests.e2e.models import patched, smollm2
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.test_mesh_unable import both, ready_without, servers_started

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

CARD = "device CARD0 gpu 0000:01:00.0 8589934592 8589934592 a card that is not there"
CRASH = ("kill -SEGV $$", "its trial was ended by SIGSEGV while it computed rope:64:9:64")
WRONG = (
    "echo wrong rope:64:9:64 1.0e+00 1.0e-04; echo tried 1; exit 2",
    "it computes rope:64:9:64 wrong (error 1.0e+00, 1.0e-04 is allowed)",
)


def card_that(folder: Path, then: str) -> Path:
    """A folder for `--native-bin`: its program lists a card as well, and does `then` in the card's trial."""
    bin_dir = install(patched(), folder, [])
    program = bin_dir / patched().binaries[RPC_SERVER].name
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --list-devices ]; then echo "{CARD}"; fi\n'
        f'if [ "$1" = --try-device ]; then echo trying rope:64:9:64; {then}; fi\n'
        f"exec '{patched().binaries[RPC_SERVER]}' \"$@\"\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    stamp = json.loads((folder / "stamp.json").read_text())
    stamp["binaries"][RPC_SERVER] = [program.name, program.stat().st_size]
    (folder / "stamp.json").write_text(json.dumps(stamp))
    return bin_dir


@pytest.mark.parametrize(("then", "why"), [CRASH, WRONG], ids=["crash", "wrong"])
def test_the_others_serve_without_it(tmp_path: Path, then: str, why: str) -> None:
    reference = alone(smollm2(), 16)
    native = card_that(tmp_path / "native", then)

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            token, half = await both(fleet, native)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            status = await ready_without(head)
            assert f"half CARD0 left out: {why}" in model_of(status).reason
            assert await api_of(status).complete(PROMPT, 16) == reference
            told = await half.until(lambda s: any(w.code == "device_unfit" for w in s.warnings))
            assert any(why in warning.what for warning in told.warnings)
            shown = await cli(half.spec.home, "doctor", *RPC.options)
            assert why in " ".join(shown.stdout.split())
            assert servers_started(half) == 0

    play(check())


def test_alone_it_is_waited_for_and_its_reason_told(tmp_path: Path) -> None:
    native = card_that(tmp_path / "native", CRASH[0])

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            half = await fleet.worker("half", "--native-bin", str(native), model=smollm2())
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=await half.token())
            told = f"half CARD0: {CRASH[1]}"
            status = await head.until(lambda s: s.model is not None and told in s.model.reason)
            assert model_of(status).state == "waiting"
            answer = await api_of(status).ask("POST", "/completion", generation(PROMPT, 1))
            assert (answer.status, told in str(answer.body)) == (503, True)
            assert servers_started(half) == 0

    play(check())


def test_a_card_that_computes_as_the_processor_is_lent(tmp_path: Path) -> None:
    """As far as a card that is not there can be: its trial is passed, and a lease asked of it."""
    real = patched().binaries[RPC_SERVER]
    native = card_that(tmp_path / "native", f"exec '{real}' --try-device CPU --try \"$4\"")

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            token, half = await both(fleet, native)
            await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            log = half.spec.home / "logs" / "device-trial.log"
            await half.until(lambda s: log.exists() and "tried" in log.read_text())
            assert "right rope:64:9:64" in log.read_text()
            await half.until(lambda _: "device_tried" in (half.spec.home / "logs" / "meshd.log").read_text())

    play(check())
