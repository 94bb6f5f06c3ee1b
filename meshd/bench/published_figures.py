"""What others reported of the same idea before meshd, to stand beside our own figures. Pure.

The documents: *split by hand* (llama.cpp's RPC on one Apple M4 Max, with a proxy that delays computing),
*patched fork* (weights from local files, a QUIC mesh, an M4 Max and a Mac Mini over Wi-Fi), *plan*
(transports over that Wi-Fi), *four machines* (large models on one to four AMD Strix Halo, Radeon 8060S).
"""

from dataclasses import dataclass

GLM, QWEN = "GLM-4.7-Flash-Q4_K_M.gguf", "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf"
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


@dataclass(frozen=True, slots=True)
class Reported:
    """One row that needs what is not here: hardware, or a model of many gigabytes. `command` in Markdown."""

    document: str
    what: str
    value: str
    command: str


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


_OSS = "gpt-oss-120b-F16.gguf"


def _split(model: str, more: str = "") -> str:
    serve = f"meshd serve --model {model} --join TOKEN {more}".strip()
    return f"`meshd worker --model {model}` on the others, `{serve}`"


_MAC_AND_MINI = "M4 Max and Mac Mini, Wi-Fi: GLM-4.7-Flash"

NEEDS_MORE = (
    Reported("split by hand", "GLM-4.7-Flash, M4 Max, tokens a second", "61", f"`meshd demo {GLM}`"),
    Reported("split by hand", "Qwen3-Coder-30B-A3B, M4 Max, tokens a second", "44", f"`meshd demo {QWEN}`"),
    Reported(
        "patched fork",
        f"{_MAC_AND_MINI} (17 GB), load, stock",
        "16.88 GB, over 14 min",
        f"`meshd bench load --model {GLM}`",
    ),
    Reported("patched fork", f"{_MAC_AND_MINI}, load, patched", "0 bytes of weights, 9 s", _split(GLM)),
    Reported(
        "patched fork",
        f"{_MAC_AND_MINI}, large machine leads: prompt, tokens a second",
        "25, 16",
        _split(GLM, "--tensor-split 0.18,0.82"),
    ),
    Reported(
        "patched fork",
        f"{_MAC_AND_MINI}, small machine leads: prompt, tokens a second",
        "27, 21",
        _split(GLM, "--tensor-split 0.85,0.15"),
    ),
    Reported(
        "patched fork",
        f"{_MAC_AND_MINI}, all layers remote: prompt, tokens a second",
        "3, 2.5",
        _split(GLM, "--device none"),
    ),
    Reported(
        "patched fork",
        "M4 Max alone, GLM-4.7-Flash: prompt, tokens a second",
        "160, 68",
        f"`meshd serve --model {GLM} --min-workers 0`",
    ),
    *(
        Reported("plan", f"Wi-Fi between two Macs, MB/s: {transport}", value, "`meshd bench transport`")
        for transport, value in (
            ("TCP", "30"),
            ("WebRTC", "15"),
            ("iroh QUIC, direct", "3 to 5"),
            ("iroh QUIC, relayed", "2"),
        )
    ),
    *(
        Reported(
            "four machines",
            f"gpt-oss-120b F16, {_machines(count)}: prompt of 512, tokens a second",
            value,
            _split(_OSS, f"--min-workers {count - 1}"),
        )
        for count, value in enumerate(("405, 33.5", "375, 28.9", "364, 23.0", "368, 21.6"), start=1)
    ),
    *(
        Reported(
            "four machines",
            f"{model}, {_machines(4)}: prompt, tokens a second",
            value,
            _split(file, "--min-workers 3"),
        )
        for model, file, value in (
            ("gpt-oss-20b F16", "gpt-oss-20b-F16.gguf", "853, 28.0 (1 machine: 1022, 47)"),
            ("Tulu 3 405B Q4_K_M", "Tulu-3-405B-Q4_K_M.gguf", "5.5, 0.9"),
            ("DeepSeek R1 Q2_K, Vulkan", "DeepSeek-R1-UD-Q2_K_XL.gguf", "40.2, 8.0"),
            ("DeepSeek R1 Q2_K, HIP", "DeepSeek-R1-UD-Q2_K_XL.gguf", "35.2, 7.9"),
            ("DeepSeek R1 Q4_K_M, HIP", "DeepSeek-R1-Q4_K_M.gguf", "27.4, 6.7"),
            ("Qwen3-Coder-480B Q6_K", "Qwen3-Coder-480B-A35B-UD-Q6_K_XL.gguf", "crashes while it warms up"),
        )
    ),
)
