"""A buffer that is filled, lent to whoever takes what is in it, and filled again.

What passes through at once then costs neither a copy nor new memory. Python counts the views of a buffer, so
a part that somebody keeps is never written over: the next filling has other memory.
"""


class LentSpace:
    """`size` bytes."""

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)

    def __len__(self) -> int:
        return len(self._bytes)

    def open(self) -> memoryview:
        """All of it, to be written to. Views of it that are still there keep what they show."""
        try:
            self._bytes.pop()  # a buffer that is shown cannot change its size
            self._bytes.append(0)
        except BufferError:
            self._bytes = bytearray(len(self._bytes))
        return memoryview(self._bytes)
