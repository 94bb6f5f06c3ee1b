"""How fast three workers get their weights: from the head, and from the head and another member.

    python -m tests.e2e.fetch_rate --upload 5MB

Real daemons on this machine; `--upload` bounds what each holder sends (`--max-upload`).
"""

import argparse
import re
import tempfile
from datetime import datetime
from pathlib import Path

from tests.e2e.homes import connected, homes_in
from tests.e2e.models import smollm2
from tests.e2e.nodes import model_of, play

NAMES = ("a", "b", "c")
ON_WORKERS = ("--device", "none", "--output-on", "head", "--workers", ",".join(NAMES), "--min-workers", "3")


async def load(folder: Path, upload: str, *, holder: bool) -> tuple[int, float]:
    """Bytes that the workers got, and in how many seconds."""
    limit = ("--max-upload", upload)
    async with homes_in(folder) as homes:
        if holder:
            homes.has("one", smollm2())
        one = await homes.start("one", *limit)
        token = await one.token()
        for name in NAMES:
            await homes.start(name, token=token)
        await connected(one, len(NAMES))
        head = await homes.serve("head", smollm2(), *ON_WORKERS, *limit, token=token)
        status = await homes.fleet.ready(head)
        sent = model_of(status).weights_network_bytes
        if sent:  # with the load
            seconds = model_of(status).load_seconds
            assert seconds is not None
            return sent, seconds
        log = (head.spec.home / "node.log").read_text()
        counts = [1e6 * float(count) for count in re.findall(r"worker_fetched .*bytes='([\d.]+) MB'", log)]
        times = [
            datetime.fromisoformat(time)
            for time in re.findall(r"(\S+) .*(?:weights_missing|worker_fetched)", log)
        ]
        return int(sum(counts)), (max(times) - min(times)).total_seconds()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--upload", default="5MB", help="most that each holder sends a second")
    upload = options.parse_args().upload
    for holder in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            count, seconds = play(load(Path(folder), upload, holder=holder))
        who = "the head and another member" if holder else "the head alone"
        rate = count / seconds / 1e6
        print(f"from {who}, {upload}/s each: {count / 1e6:.1f} MB in {seconds:.1f} s, {rate:.2f} MB/s")  # noqa: T201


if __name__ == "__main__":
    main()
