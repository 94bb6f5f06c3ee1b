"""By what devices are compared: bytes of weights a second, operations a second."""

import pytest
from meshd.model.device_speed import DeviceSpeed
from meshd.model.reference_layer import ReferenceRates, reference_rates
from meshd.wire.capacity import TimedLayer


def test_rates_are_those_of_one_layer() -> None:
    """Of 134 million elements, in 4.5 bits each: 75.5 MB."""
    found = reference_rates(DeviceSpeed((TimedLayer(0, 1, 10_000_000), TimedLayer(0, 128, 500_000_000))))
    assert found.weight_bytes_s == pytest.approx(7.55e9, rel=1e-3)
    assert found.flops == pytest.approx(2 * 134.2e6 * 128 / 0.5, rel=1e-3)


@pytest.mark.parametrize("speed", [None, DeviceSpeed(()), DeviceSpeed((TimedLayer(1, 1, 5),))])
def test_what_nobody_has_measured_has_none(speed: DeviceSpeed | None) -> None:
    assert reference_rates(speed) == ReferenceRates(None, None)
