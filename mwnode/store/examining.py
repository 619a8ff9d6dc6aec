"""What one stored Event or Command proves by itself: signature, hash, spelling, key, and the documents it carries.

The dearest part of a verification, and a pure one: the same question about the same Registry has the same answer, in
whatever process it is asked, and also another day.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from mwnode.authority.intake import EMBEDDED, prepare
from mwnode.protocol import jcs
from mwnode.protocol.documents import Actor, Command
from mwnode.protocol.instants import parse
from mwnode.store.group_log import admission_id
from mwnode.trust.admission import Acceptance, candidate
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified, verify


class Asked(Struct, frozen=True, array_like=True):
    """A stored document. ``signing_hash`` is the one stored for it; ``None`` where another one is right."""

    kind: Literal["event", "command"]
    raw: bytes
    signing_hash: bytes | None
    accepted_at: str


class Carried(Struct, frozen=True, array_like=True):
    """A Signed Document in a Command's payload: why it does not verify, or the First-Admission Record it must have."""

    path: str
    failure: str
    signing_hash: bytes = b""
    record: bytes | None = None
    """``None`` when there can be none."""


class Examined(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The answer."""

    verified: bool = True
    """Whether the document may be read at all."""
    faults: tuple[tuple[str, str], ...] = ()
    """Kind and detail of what is wrong with its bytes."""
    in_time: bool = True
    """Whether its key was valid when it was accepted."""
    carried: tuple[Carried, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong with the document itself."""
        return self.verified and self.in_time and not self.faults


CLEAN = Examined()


def examine(asked: Asked, registry: Registry, authority: Actor | None) -> Examined:
    """Look at one document. ``authority`` is the service that the file names as the one that accepts."""
    verdict = verify(asked.raw, asked.kind, registry, bytes_max=len(asked.raw))
    if isinstance(verdict, Failure):
        return Examined(False, (("signature", f"{verdict.stage}: {verdict.reason} {verdict.detail}".strip()),))
    faults: list[tuple[str, str]] = []
    if asked.signing_hash is not None and verdict.signing_hash != f"sha256:{asked.signing_hash.hex()}":
        faults.append(("hash", "the stored signing hash is not the document's"))
    if jcs.canonical(verdict.document) != asked.raw:
        faults.append(("hash", "the stored bytes are not the canonical ones that were signed"))
    carried = _carried(verdict, asked.accepted_at, registry, authority) if asked.kind == "command" else ()
    in_time = _in_time(verdict, asked.accepted_at, registry)
    return Examined(True, tuple(faults), in_time, carried) if faults or carried or not in_time else CLEAN


def _in_time(verified: Verified, accepted_at: str, registry: Registry) -> bool:
    binding = registry.resolve(verified.key_id)
    try:
        return binding is not None and binding.valid_at(parse(accepted_at))
    except ValueError:
        return False


def _carried(verified: Verified, accepted_at: str, registry: Registry, authority: Actor | None) -> tuple[Carried, ...]:
    command = verified.document
    assert isinstance(command, Command)
    if command.kind not in EMBEDDED:
        return ()
    return tuple(
        admission_due(each.path, each.verdict, accepted_at, authority) for each in prepare(verified, registry).embedded
    )


def admission_due(path: str, verdict: Verified | Failure, accepted_at: str, authority: Actor | None) -> Carried:
    """What a file must hold about a document that came with a Command accepted then (R-6.4-60)."""
    if isinstance(verdict, Failure):
        return Carried(path, f"{verdict.stage}: {verdict.reason}")
    signing_hash = bytes.fromhex(verdict.signing_hash[7:])
    if authority is None:
        return Carried(path, "")
    record = candidate(verdict, Acceptance(admission_id(signing_hash), accepted_at, authority))
    return Carried(path, "", signing_hash, None if isinstance(record, Failure) else msgspec.json.encode(record))
