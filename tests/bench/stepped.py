"""Steps of a stepped clock (networks.py), as the process of the networks prints them. Pure."""

import json
from dataclasses import dataclass

LITTLE = 400  # bytes of pings; a step that carries no more was made while somebody computed


@dataclass(frozen=True, slots=True)
class Step:
    """Half a round trip: when it passed in unix seconds, whether all nodes slept then, what it carried."""

    at: float
    quiet: bool
    bytes: int

    @property
    def counts(self) -> bool:
        return self.quiet or self.bytes > LITTLE


def steps_of(log: str) -> list[Step]:
    """Return all steps, in order."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"step"')]
    return [Step(line["at"], line["quiet"], line["bytes"]) for line in lines]
