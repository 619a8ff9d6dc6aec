"""The floors: the least that any implementation has to spend, measured with the libraries alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nacl import bindings

from mwnode.bench.report import best_of

_SEED = bytes(range(32))


Clock = Callable[[], float]


def signed_texts(message: bytes, count: int) -> tuple[list[bytes], bytes]:
    """As many signed messages of that length, and the public key.

    Each has a signature of its own: one and the same over and over would be learnt by the processor's branch
    prediction, which nobody's traffic is.
    """
    public, secret = bindings.crypto_sign_seed_keypair(_SEED)
    return [bindings.crypto_sign(message[8:] + number.to_bytes(8, "big"), secret) for number in range(count)], public


def verify_all(signed: Sequence[bytes], public: bytes) -> None:
    """Bare libsodium verification of each."""
    for each in signed:
        bindings.crypto_sign_open(each, public)


def verify_seconds(message: bytes, rounds: int = 400, clock: Clock = time.perf_counter) -> float:
    """One bare libsodium verification of a message of that length, in seconds."""
    signed, public = signed_texts(message, rounds)
    return best_of(3, lambda: verify_all(signed, public), clock) / rounds


def sign_seconds(message: bytes, rounds: int = 400, clock: Clock = time.perf_counter) -> float:
    """One bare libsodium signature of a message, in seconds."""
    _, secret = bindings.crypto_sign_seed_keypair(_SEED)

    def work() -> None:
        for _ in range(rounds):
            bindings.crypto_sign(message, secret)

    return best_of(3, work, clock) / rounds


def fsync_seconds(directory: Path, rounds: int = 100) -> float:
    """One write of a page and its fsync, in seconds."""
    path = directory / "fsync.probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    page = bytes(4096)
    try:

        def work() -> None:
            for number in range(rounds):
                os.pwrite(descriptor, page, number * 4096)
                os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)

        return best_of(2, work) / rounds
    finally:
        os.close(descriptor)
        path.unlink()
