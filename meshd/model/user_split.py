"""What the user's tensor split means: how many layers each device gets."""

from collections.abc import Sequence

from meshd.base.errors import UserError
from meshd.model.partition import share_out
from meshd.model.split_values import Device, NoSplit


def user_counts(
    shares: Sequence[float], workers: Sequence[Device], own: Sequence[Device], *, layers: int
) -> tuple[list[Device], tuple[int, ...]]:
    """Devices and their numbers of layers: workers, then the head's `own` if there are shares for them.

    Whole numbers that sum up to `layers` are taken as they are, and those of one more as llama.cpp does, for
    the output on the last device but a CPU of the head. Raises UserError; NoSplit where there are more or
    fewer devices than shares.
    """
    given = ",".join(f"{share:g}" for share in shares)
    order = [*workers, *own]
    if len(shares) not in (len(workers), len(order)):
        expected = " or ".join(str(n) for n in sorted({len(workers), len(order)}))
        names = ", ".join(device.label for device in order)
        raise NoSplit(
            f"the tensor split `{given}` has {len(shares)} shares, expected {expected}",
            hint=f"give one share for each worker, then for the head's own devices: {names}",
        )
    order = order[: len(shares)]
    if not all(0 <= share < float("inf") for share in shares) or not 0 < sum(shares) < float("inf"):
        raise UserError(f"the tensor split `{given}` needs shares of at least zero, not all zero")
    whole = tuple(int(share) for share in shares)
    if list(whole) == list(shares) and sum(whole) == layers:
        return order, whole
    on_dev = [
        number
        for number, device in enumerate(order)
        if whole[number] and (device.is_gpu or not device.is_head)
    ]
    if list(whole) == list(shares) and sum(whole) == layers + 1 and on_dev and whole[on_dev[-1]] > 1:
        last = on_dev[-1]
        return order, (*whole[:last], whole[last] - 1, *whole[last + 1 :])
    return order, share_out(shares, layers)
