"""A layer of usual size and type, for comparing devices without a model."""

from dataclasses import dataclass

from meshd.model.device_speed import DeviceSpeed

REFERENCE_LAYERS = (
    "2=mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:8192,mul_mat:q4_k:4096:8192,"
    "mul_mat:q4_k:4096:8192",
)
_ELEMENTS = 4096 * (2 * 4096 + 3 * 8192)
_BYTES = _ELEMENTS // 256 * 144
_PROMPT_TOKENS = 128  # the prompt for which operations per second are reported


@dataclass(frozen=True, slots=True)
class ReferenceRates:
    """Bytes of weights per second for one token, operations per second for a prompt; None: not measured."""

    weight_bytes_s: float | None = None
    flops: float | None = None


def reference_rates(speed: DeviceSpeed | None) -> ReferenceRates:
    """Return the rates of a device with these times of REFERENCE_LAYERS, timed alone."""
    if speed is None or 0 not in speed:
        return ReferenceRates()
    return ReferenceRates(
        weight_bytes_s=_BYTES / speed.seconds(0, 1),
        flops=2 * _ELEMENTS * _PROMPT_TOKENS / speed.seconds(0, _PROMPT_TOKENS),
    )
