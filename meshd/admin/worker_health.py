"""Warns of trouble with what a worker lends: its files, its devices, and the weights that it keeps. Pure."""

from collections.abc import Iterator, Sequence

from meshd.admin.status import HealthWarning
from meshd.model.status import StoreStatus

_FILE_HINT = "if that was not intended, put the right file there; the next load uses it"
_UNFIT_HINT = (
    "try another driver, or exclude the device with `--device CPU`; run `meshd logs device-trial` for "
    "details. It is tried again after ten minutes"
)
_KEEP_HINT = (
    "free space on that disk, raise `--keep-weights`, or give this worker the model's file; until then each "
    "load sends them again"
)


def worker_warnings(
    store: StoreStatus | None, file_notes: Sequence[str], unfit: Sequence[str]
) -> Iterator[HealthWarning]:
    """Yield warnings. `file_notes`: changes to its model files. `unfit`: devices that failed their trial."""
    if store is not None and store.problem:
        what = f"downloaded weights cannot be kept in `{store.path}`: {store.problem}"
        yield HealthWarning(code="weights_not_kept", severity="warning", what=what, hint=_KEEP_HINT)
    for note in file_notes:
        yield HealthWarning(code="model_file", severity="warning", what=note, hint=_FILE_HINT)
    for device in unfit:
        yield HealthWarning(code="device_unfit", severity="warning", what=device, hint=_UNFIT_HINT)
