"""One worker's connection with our llama-server: what that inherits, and what is seen of it."""

import os
from collections.abc import Callable, Mapping
from socket import socket

from meshd.role.head.away_times import AwayTimes
from meshd.role.head.load_report import WeightsReport
from meshd.role.head.model_header import ModelHeader
from meshd.rpc.absent_weights import AbsentWeights
from meshd.rpc.mesh_head_view import MeshHeadView


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
    ) -> None:
        """`weights` are the names of the model's tensors, by content; `report` is told of each, and `away`
        of what passes. `header`: that is all this node has of the model.
        """
        self.away = away
        self._socket_pair = socket_pair
        self._weights = weights
        self._report = report
        absent = None if header is None else AbsentWeights(header.absent, self._lacked)
        self.view = MeshHeadView(self._placed, seen=away.seen, absent=absent)
        self._header = header
        self._child_end = -1
        self._endpoint = ""

    @property
    def neighbours(self) -> frozenset[int]:
        """With which the worker has a connection, by their places in the list of workers."""
        return self.view.neighbours

    def open(self, endpoint: str) -> socket:
        """Our end of a new connection, which llama-server calls `endpoint`.

        Raises OSError where this node has no descriptors left: no MeshdError, for those of a lease are taken
        for its worker's.
        """
        ours, self._child_end = self._socket_pair()
        self._endpoint = endpoint
        return ours

    def give(self) -> int:
        """The other end, whose owner the caller is now."""
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
