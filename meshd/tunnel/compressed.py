"""A mesh stream whose bytes cross compressed (wire/compressed.py), in both directions; else as any Stream.

Both ends must know of it: the opener of the stream says so in its metadata, and only to a peer that announced
it. The opener also says whether floats are compressed, as it alone has judged the path.

`judge` decides by the facts of a path what of a stream is compressed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.base.errors import EndOfStream, RemoteProtocolError
from meshd.link.interface import LOOPBACK, RELAYED
from meshd.model.output import NEAR_SECONDS
from meshd.peer.interface import MetadataValue, PathStatus, Stream
from meshd.wire.compressed import Compression, Decoder, Encoder

COMPRESSED_VERSION = 1  # of the frames
COMPRESSED: Mapping[str, MetadataValue] = {"compressed": COMPRESSED_VERSION}  # the metadata of such a stream
# The same of one on which neither end compresses floats. A node that does not know it compresses its own,
# which is slower and understood.
REPEATS_ONLY: Mapping[str, MetadataValue] = {**COMPRESSED, "repeats": 1}
METADATA: Mapping[Compression, Mapping[str, MetadataValue]] = {
    Compression.NOTHING: {},
    Compression.REPEATS: REPEATS_ONLY,
    Compression.ALL: COMPRESSED,
}
# Bytes a second of a path above which it takes longer to compress activations (some 200 MB/s, and 13 % saved)
# than to send what that saves of them
FAST_RATE = 25e6
# The round trip from which a load's round trips weigh more than 0.05 to 0.1 ms for each token, which it takes
# to see that there is nothing to compress in it
FAR_SECONDS = 0.01


def as_agreed(stream: Stream) -> Stream:
    """Return `stream`, compressed as its metadata says. Raises RemoteProtocolError."""
    version = stream.metadata.get("compressed")
    if version is None:
        return stream
    if version != COMPRESSED_VERSION:
        raise RemoteProtocolError(
            f"a stream is compressed in an unknown way ({version!r}, expected {COMPRESSED_VERSION})",
            code="compressed",
        )
    return CompressedStream(stream, floats=not stream.metadata.get("repeats"))


class CompressedStream:
    """Implements Stream over another one, which it owns.

    What `try_write` has compressed and could not hand on waits here for `write`, which must be given the same
    bytes next: they are in the compressor's history already. Credit goes back for whole chunks, when all that
    they made was consumed; what waits to be decompressed is one chunk and less than a frame.
    """

    def __init__(self, stream: Stream, *, floats: bool = True) -> None:
        """`floats`: see Encoder."""
        self._stream = stream
        self.peer, self.service, self.metadata = stream.peer, stream.service, stream.metadata
        self.accepted = stream.accepted
        self._encoder = Encoder(floats=floats)
        self._decoder = Decoder()
        self._take: Callable[[bytes | memoryview], bool] | None = None
        self._unsent: tuple[memoryview, int] | None = None  # frames, and how many bytes of `write` they hold
        self._piece: bytes | None = None  # decompressed, and not taken by `divert`
        self._fed = False  # the chunk that is read next is in the decoder already
        self._error: RemoteProtocolError | None = None
        self._uncredited = 0  # bytes of chunks in the decoder
        self._unconsumed = 0  # bytes that were handed out and not consumed

    # Receiving.

    async def read(self) -> bytes | memoryview:
        """Return the next decompressed piece. Raises RemoteProtocolError, beside what Stream.read raises."""
        while True:
            piece = self._next()
            if piece is not None:
                return piece
            try:
                chunk = await self._stream.read()
            except EndOfStream:
                if not self._decoder.is_between:
                    raise RemoteProtocolError(
                        "compressed stream: it ends in the middle of a frame", code="compressed"
                    ) from None
                raise
            if self._fed:
                self._fed = False
            else:
                self._feed(chunk)

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        self._take = take
        self._stream.divert(self._arrived if take is not None else None)

    def consumed(self, count: int) -> None:
        self._unconsumed -= count
        self._give_credit()

    def _arrived(self, chunk: bytes | memoryview) -> bool:
        """Decompress and pass on directly; False leaves the chunk to `read`, which does not feed it again."""
        if self._take is None or self._error is not None or self._piece is not None or self._decoder.waits:
            return False
        self._feed(chunk)
        try:
            while (piece := self._next()) is not None:
                if not self._take(piece):
                    self._piece = piece
                    self._unconsumed -= len(piece)  # `_next` counts it when it goes out
                    self._fed = True
                    return False
        except RemoteProtocolError as error:
            self._error = error.afresh()
            self._fed = True
            return False
        self._give_credit()
        return True

    def _feed(self, chunk: bytes | memoryview) -> None:
        self._uncredited += len(chunk)
        self._decoder.feed(chunk)

    def _next(self) -> bytes | None:
        """Return the next piece to pass on. Raises RemoteProtocolError, then always."""
        if self._error is not None:
            raise self._error.afresh()
        piece, self._piece = self._piece, None
        if piece is None:
            try:
                piece = self._decoder.next()
            except RemoteProtocolError as error:
                self._error = error.afresh()
                raise
        if piece is None:
            self._give_credit()
        else:
            self._unconsumed += len(piece)
        return piece

    def _give_credit(self) -> None:
        idle = not self._unconsumed and self._piece is None and not self._decoder.waits
        if idle and self._uncredited:
            count, self._uncredited = self._uncredited, 0
            self._stream.consumed(count)

    # Sending.

    def try_write(self, data: bytes | memoryview) -> int:
        """Write all of `data` or nothing; after 0 `write` must be given the same bytes."""
        if self._unsent is not None:
            return 0
        frames = self._encoder.encode(data)
        taken = self._stream.try_write(frames)
        if taken == len(frames):
            return len(data)
        self._unsent = memoryview(frames)[taken:], len(data)
        return 0

    async def write(self, data: bytes | memoryview) -> None:
        frames: bytes | memoryview
        if self._unsent is None:
            frames = self._encoder.encode(data)
        else:  # all of it is compressed before anything waits: what comes meanwhile must be compressed later
            (frames, size), self._unsent = self._unsent, None
            if len(data) > size:
                frames = b"".join((frames, self._encoder.encode(memoryview(data)[size:])))
        await self._stream.write(frames)

    def write_eof(self) -> None:
        self._stream.write_eof()

    def reset(self, code: int, reason: str) -> None:
        self._stream.reset(code, reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what is compressed, and why."""

    how: Compression
    why: str


def judge(paths: Sequence[PathStatus]) -> Verdict:
    """Judge by the path that carries data: what it carried when it was full, else what stands in between.

    On a fast path over a distance graphs and masks are compressed all the same: for the 1 MB of a load, whose
    windows have to grow first, it is as slow as any other.
    """
    path = next((path for path in paths if path.selected), None)
    if path is None:
        return Verdict(Compression.NOTHING, "no path is known")
    if path.link.path == LOOPBACK:  # whatever it measures: a busy machine answers late
        return Verdict(Compression.NOTHING, "the other node is on this machine")
    shortest = path.rtt_min if path.rtt_min is not None else path.rtt
    if path.rate is not None:
        is_far = shortest is not None and shortest >= FAR_SECONDS
        fast = Compression.REPEATS if is_far else Compression.NOTHING
        how = Compression.ALL if path.rate < FAST_RATE else fast
        return Verdict(how, f"the path carries {path.rate / 1e6:.1f} MB/s")
    if path.link.path == RELAYED:
        return Verdict(Compression.ALL, "the path is relayed")
    if shortest is None:
        return Verdict(Compression.NOTHING, "nothing is known of the path")
    how = Compression.ALL if shortest >= NEAR_SECONDS else Compression.NOTHING
    return Verdict(how, f"the round trip is {shortest * 1000:.1f} ms")
