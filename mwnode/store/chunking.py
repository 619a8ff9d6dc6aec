"""Where an Artifact is cut, so that two versions of a large file share what they share.

A cut is made behind the first place, at least ``CHUNK_BYTES_MIN`` into the chunk, where four bytes fit a fixed pattern;
the place depends on the content alone, so that what follows an insertion is cut as before. A regular expression that
begins with one letter is searched at the speed of memchr; a pattern of classes alone would be several times slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

CHUNK_BYTES_MIN: Final = 64 * 1024
CHUNK_BYTES_MAX: Final = 1024 * 1024


def _residues(modulus: int, residue: int) -> bytes:
    """A class of every byte with that remainder: it holds letters, digits and control bytes alike."""
    return b"[" + b"".join(b"\\x%02x" % byte for byte in range(residue, 256, modulus)) + b"]"


_CUT: Final = re.compile(b"e" + _residues(16, 4) + _residues(16, 1) + _residues(8, 5))


class Chunker:
    """Cuts a stream. ``feed`` gives the chunks that are certain, ``rest`` what is left at the end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more bytes; every chunk whose end is known now."""
        self._buffer += data
        start = 0
        # A cut is certain only when a whole longest chunk is there to look through.
        while len(self._buffer) - start >= CHUNK_BYTES_MAX:
            end = self._cut(start)
            yield bytes(self._buffer[start:end])
            start = end
        if start:
            del self._buffer[:start]

    def rest(self) -> Iterator[bytes]:
        """The last chunks. Nothing for an empty rest."""
        start = 0
        while start < len(self._buffer):
            end = self._cut(start)
            yield bytes(self._buffer[start:end])
            start = end
        self._buffer = bytearray()

    def _cut(self, start: int) -> int:
        stop = min(start + CHUNK_BYTES_MAX, len(self._buffer))
        found = _CUT.search(self._buffer, start + CHUNK_BYTES_MIN, stop)
        return stop if found is None else found.end()
