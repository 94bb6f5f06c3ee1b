"""A layer of a usual size and type, by which devices are compared without a model."""

from dataclasses import dataclass

from meshd.model.device_speed import DeviceSpeed

REFERENCE_LAYERS = (
    "2=mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:8192,mul_mat:q4_k:4096:8192,"
    "mul_mat:q4_k:4096:8192",
)
_ELEMENTS = 4096 * (2 * 4096 + 3 * 8192)
_BYTES = _ELEMENTS // 256 * 144
_PROMPT_TOKENS = 128  # with which computing is told


@dataclass(frozen=True, slots=True)
class ReferenceRates:
    """Bytes of weights a second for one token, operations a second for a prompt; None: never measured."""

    weight_bytes_s: float | None = None
    flops: float | None = None


def reference_rates(speed: DeviceSpeed | None) -> ReferenceRates:
    """Of a device with these times of REFERENCE_LAYERS, asked alone."""
    if speed is None or 0 not in speed:
        return ReferenceRates()
    return ReferenceRates(
        weight_bytes_s=_BYTES / speed.seconds(0, 1),
        flops=2 * _ELEMENTS * _PROMPT_TOKENS / speed.seconds(0, _PROMPT_TOKENS),
    )
