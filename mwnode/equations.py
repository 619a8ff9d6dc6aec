"""Shell: checks signature equations in a process of its own, so that they keep no thread waiting for the interpreter.

libsodium gives the interpreter lock away for each signature, and beside a busy Python thread taking it back costs far
more than the signature. The helper gets public keys, messages and signatures and answers yes or no; it holds no key,
opens no file, and ends when the socket to it closes. It changes no result: whoever asks checks every no again, and does
the work itself when there is no helper.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

from mwnode.trust import ed25519

Equation = tuple[bytes, bytes, bytes]
"""A proven public key, a message, a signature of 64 bytes: the arguments of ``ed25519.verify``."""

_COUNT: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">32s64sI")
"""Public key, signature, length of the message that follows."""
_READY: Final = b"R"
_YES: Final = 1
ANSWER_SECONDS: Final = 2.0
"""A helper that takes longer is stopped: somebody holds it, or the machine does."""
END_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class EquationHelper:
    """One helper process. Not for use from several threads at once."""

    def __init__(self) -> None:
        """Begin to start it; OSError where that is not allowed."""
        mine, theirs = socket.socketpair()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mwnode.equations"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()
        mine.settimeout(ANSWER_SECONDS)
        self._socket = mine
        self._ready = False
        self.gone = False
        """Whether it failed; it is of no use any more."""

    @property
    def ready(self) -> bool:
        """Whether it has started and still works."""
        if not self._ready and not self.gone and select.select([self._socket], [], [], 0)[0]:
            self._ready = self._receive(1) == _READY
        return self._ready and not self.gone

    def send(self, equations: Sequence[Equation]) -> bool:
        """Hand over some; False when it is gone. ``receive`` answers in the order of sending."""
        parts = [_COUNT.pack(len(equations))]
        for public, message, signature in equations:
            parts += (_HEAD.pack(public, signature, len(message)), message)
        try:
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            self._fail(str(error))
        return not self.gone

    def receive(self, count: int) -> list[bool] | None:
        """Whether each of those equations holds, or None when it is gone."""
        answer = self._receive(count)
        return None if answer is None else [byte == _YES for byte in answer]

    def _receive(self, size: int) -> bytes | None:
        received = b""
        while len(received) < size and not self.gone:
            try:
                piece = self._socket.recv(size - len(received))
            except OSError as error:
                self._fail(str(error))
                break
            if not piece:
                self._fail("it ended")
            received += piece
        return None if self.gone else received

    def _fail(self, reason: str) -> None:
        if not self.gone:
            self.gone = True
            _log.warning("the helper that checks signatures is gone (%s); the node checks them itself", reason)
            self.close()

    def close(self) -> None:
        """End it and wait until it has ended. Idempotent."""
        self._socket.close()
        try:
            self._process.wait(0 if self.gone else END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.gone = True


def answer(reading: BinaryIO, writing: int) -> None:
    """What the helper does: read questions until there are no more, and answer each list of them."""
    while len(head := reading.read(_COUNT.size)) == _COUNT.size:
        held = bytearray()
        for _ in range(_COUNT.unpack(head)[0]):
            public, signature, size = _HEAD.unpack(reading.read(_HEAD.size))
            held.append(ed25519.verify(public, reading.read(size), signature))
        os.write(writing, held)


def main() -> None:
    """The helper's process."""
    # Ctrl-C is for the node, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A node that is killed answers nobody: its questions end in the middle.
    with contextlib.suppress(struct.error, BrokenPipeError, ConnectionResetError):
        os.write(1, _READY)
        answer(sys.stdin.buffer, 1)


if __name__ == "__main__":
    main()
