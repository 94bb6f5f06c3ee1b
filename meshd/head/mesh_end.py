"""One worker's connection with our llama-server: what that inherits, and what is seen of it.

A head that has only the header of a model learns here that a worker lacks tensors.
"""

import os
from collections.abc import Callable, Mapping
from socket import socket

from meshd.base.errors import MeshdError, UserError
from meshd.head.away_times import AwayTimes
from meshd.head.load_report import WeightsReport
from meshd.model.layers import is_of_layer
from meshd.model.weights_index import WeightsIndex
from meshd.rpc.absent_weights import AbsentWeights
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.reading_budget import NodeReading


class ModelHeader:
    """Hold what a head without layers knows of its model; `fails` is told once why it cannot be loaded."""

    def __init__(self, name: str, index: WeightsIndex, fails: Callable[[MeshdError], None]) -> None:
        self._name = name
        self._fails = fails
        self.absent = frozenset(one.digest for one in index.tensors if is_of_layer(one.name))
        """The hashes of all tensors of layers. One that is here as well, with the same bytes, counts too:
        llama-server would read it where the layer has it.
        """

    def is_lacked(self, worker: str, tensor: str | None) -> None:
        """Fail: a worker needs this tensor, and nothing of this file may be sent in its place."""
        what = f"tensor `{tensor}`" if tensor is not None else "weights that are known by no hash"
        self._fails(
            UserError(
                f"worker {worker} lacks {what}, and this node has only the header of `{self._name}`",
                hint="start that worker with `--model`, or let a member give it the model (`give_models` "
                "there, `--keep-weights` on the worker); without `--header-only` this node takes all of it",
            )
        )


class MeshEnd:
    """`open` once, `give` what it made to llama-server, `close` what nobody took."""

    def __init__(
        self,
        socket_pair: Callable[[], tuple[socket, int]],
        *,
        weights: Mapping[bytes, str],
        report: WeightsReport,
        away: AwayTimes,
        header: ModelHeader | None = None,
        reading: NodeReading | None = None,
    ) -> None:
        """`weights` are the names of the model's tensors, by content; `report` is told of each, and `away`
        of what passes. `header`: that is all this node has of the model. `reading`: see MeshHeadView.
        """
        self.away = away
        self._socket_pair = socket_pair
        self._weights = weights
        self._report = report
        absent = None if header is None else AbsentWeights(header.absent, self._lacked)
        self.view = MeshHeadView(self._placed, seen=away.seen, absent=absent, reading=reading)
        self._header = header
        self._child_end = -1
        self._endpoint = ""

    @property
    def neighbours(self) -> frozenset[int]:
        """With which the worker has a connection, by their places in the list of workers."""
        return self.view.neighbours

    def open(self, endpoint: str) -> socket:
        """Return our end of a new connection, which llama-server calls `endpoint`.

        Raises OSError where this node has no descriptors left: no MeshdError, for those of a lease are taken
        for its worker's.
        """
        ours, self._child_end = self._socket_pair()
        self._endpoint = endpoint
        return ours

    def give(self) -> int:
        """Return the other end, whose owner the caller is now."""
        given, self._child_end = self._child_end, -1
        return given

    def close(self) -> None:
        """Idempotent."""
        if self._child_end >= 0:
            os.close(self.give())

    def _placed(self, digest: bytes, size: int, why: str) -> None:
        name = self._weights.get(digest, digest.hex())
        self._report.placed(self._endpoint, name, size, why)

    def _lacked(self, digest: bytes) -> None:
        assert self._header is not None
        worker = self._report.names.get(self._endpoint, self._endpoint)
        self._header.is_lacked(worker, self._weights.get(digest))
