"""Figures that others reported for a split over a distance, to compare with our own. Pure.

Source: llama.cpp's RPC on one Apple M4 Max, with a proxy that delays computing.
"""

from dataclasses import dataclass

GLM = "GLM-4.7-Flash-Q4_K_M.gguf"
NOT_RUN = "not run here"


@dataclass(frozen=True, slots=True)
class Delayed:
    """*split by hand*: GLM-4.7-Flash on an M4 Max, each computation held back by `ms`. A node is the head."""

    nodes: int
    ms: float
    tokens_a_second: float


DELAYED = (
    Delayed(3, 0, 60.2),
    Delayed(3, 5, 30.1),
    Delayed(3, 10, 21.4),
    Delayed(3, 20, 12.6),
    Delayed(3, 30, 9.4),
    Delayed(4, 0, 57.1),
    Delayed(4, 5, 21.8),
    Delayed(4, 10, 15.7),
    Delayed(4, 20, 8.0),
    Delayed(5, 0, 52.8),
    Delayed(5, 5, 18.4),
)
DELAYED_COMMAND = f"`meshd bench latency --workers 2,3,4 --rtt 0,5,10,20,30 --model {GLM}`"
