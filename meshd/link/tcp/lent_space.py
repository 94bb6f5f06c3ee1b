"""A buffer for received bytes that is used again once nobody holds a view of it.

Bytes that are consumed at once cost neither a copy nor new memory. Python counts the views of a buffer: if
one is still held when the buffer is opened again, the next bytes go to new memory, and the view keeps its
content.
"""


class LentSpace:
    """A buffer of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)

    def __len__(self) -> int:
        return len(self._bytes)

    def open(self) -> memoryview:
        """Return the whole buffer, writable. Views that are still held keep their content."""
        try:
            self._bytes.pop()  # raises while there are views: a buffer cannot change its size then
            self._bytes.append(0)
        except BufferError:
            self._bytes = bytearray(len(self._bytes))
        return memoryview(self._bytes)
