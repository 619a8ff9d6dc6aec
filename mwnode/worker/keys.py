"""Idempotency keys: the same logical operation has the same key, over retries, restarts and reconnects (R-16-08)."""

from __future__ import annotations

import hashlib

EXECUTE = "execute"
"""The logical operation of running a WorkItem's executor."""


def idempotency_key(ownership_epoch: int, mission_id: str, work_item_id: str, operation: str = EXECUTE) -> str:
    """A text of 64 hexadecimal digits, made of exactly these four (R-16-62). Another owner has another key."""
    digest = hashlib.sha256()
    for part in (str(ownership_epoch), mission_id, work_item_id, operation):
        encoded = part.encode("utf-8")
        # Lengths keep the parts apart: no two different tuples are hashed as the same bytes.
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.hexdigest()


def attempt_key(key: str, attempt: int) -> str:
    """The key of one external attempt, derived from the execution's key; attempts count from 1 (R-11.4-09)."""
    if attempt < 1:
        raise ValueError("attempts count from 1")
    return hashlib.sha256(f"{key}/{attempt}".encode()).hexdigest()
