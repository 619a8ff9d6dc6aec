"""The Agent Registry's evidence: which key belongs to whom, and when it is valid.

A :class:`Registry` is one coherent, complete revision of one Organization; it never changes. What enters it is proven
first, so whatever :meth:`Registry.resolve` returns is a key of the prime-order subgroup with one owner for ever. The
evidence is judged as a whole: one bad entry, however unrelated, and there is no Registry at all (R-6.4-25).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mwnode.protocol import instants
from mwnode.protocol.documents import Actor, Document
from mwnode.protocol.instants import Instant
from mwnode.protocol.scalars import Id
from mwnode.protocol.strict_json import SchemaFault, convert
from mwnode.trust import ed25519


class RegistryFault(ValueError):
    """Evidence that proves nothing, or a change that the Registry refuses. ``reason`` is a stable word for audit."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- as it is written -------------------------------------------------------------------------------------------------


class ValidityRecord(Document):
    """One entry of a key's validity history; a member that is absent changes nothing."""

    sequence: int
    recorded_at: str
    valid_until: str | UnsetType = UNSET
    revoked_at: str | UnsetType = UNSET


class KeyBinding(Document):
    """One key of one Principal, with its whole validity history."""

    key_id: str
    principal: Actor
    algorithm: str
    public_key: str
    valid_from: str
    validity_history: tuple[ValidityRecord, ...]


class RegistryDocument(Document):
    """The written form of one revision: everything there is, nothing filtered."""

    organization_id: str
    bindings: tuple[KeyBinding, ...]


# --- as it is used ----------------------------------------------------------------------------------------------------


class Binding(Struct, frozen=True, gc=False):
    """A proven key. ``valid_until`` and ``revoked_at`` are the earliest ones in its history; None is open."""

    key_id: str
    principal: Actor
    public_key: bytes
    valid_from: Instant
    valid_until: Instant | None
    revoked_at: Instant | None
    document: KeyBinding

    def valid_at(self, instant: Instant) -> bool:
        """validFrom <= instant, and instant before both ends (R-6.4-34)."""
        return (
            self.valid_from <= instant
            and (self.valid_until is None or instant < self.valid_until)
            and (self.revoked_at is None or instant < self.revoked_at)
        )


def _instant(text: str, name: str) -> Instant:
    try:
        return instants.parse(text)
    except ValueError:
        raise RegistryFault("malformed-time", f"{name} is not a timestamp of the profile") from None


def _identifier(text: str, name: str) -> None:
    try:
        convert(text, Id)
    except SchemaFault:
        raise RegistryFault("malformed-identifier", f"{name} is not an absolute URI") from None


def _earliest(old: Instant | None, new: Instant | None, name: str) -> Instant | None:
    if old is not None and new is not None and new > old:
        raise RegistryFault("boundary-postponed", f"{name} may be added or brought forward, never moved later")
    return old if new is None else new


def prove(document: KeyBinding, *, proven_point: bool = False) -> Binding:
    """A binding by itself: point first, then names, times and history (R-6.4-22). Raises :class:`RegistryFault`.

    ``proven_point`` says that the key's point was proven before, when it was registered.
    """
    if document.algorithm != "Ed25519":
        raise RegistryFault("unsupported-algorithm", "a key's algorithm is Ed25519")
    try:
        public_key = ed25519.decode_base64url(document.public_key)
    except ValueError:
        raise RegistryFault("malformed-public-key", "publicKey is not canonical base64url") from None
    if len(public_key) != ed25519.KEY_BYTES:
        raise RegistryFault("malformed-public-key", "publicKey has not 32 bytes")
    if not (proven_point or ed25519.prove_point(public_key)):
        raise RegistryFault("weak-public-key", "publicKey is no canonical point of the prime-order subgroup")
    _identifier(document.key_id, "keyId")
    _identifier(document.principal.id, "principal.id")
    valid_from = _instant(document.valid_from, "validFrom")
    valid_until, revoked_at = _effective(document.validity_history)
    return Binding(document.key_id, document.principal, public_key, valid_from, valid_until, revoked_at, document)


def _effective(history: Iterable[ValidityRecord]) -> tuple[Instant | None, Instant | None]:
    """The earliest ends of a history that is numbered without holes and only ever shortens (R-6.4-32, R-6.4-33)."""
    valid_until: Instant | None = None
    revoked_at: Instant | None = None
    recorded = None
    for number, record in enumerate(history, start=1):
        if record.sequence != number:
            raise RegistryFault("history-incomplete", "validityHistory is numbered 1, 2, 3 without a hole")
        at = _instant(record.recorded_at, "recordedAt")
        if recorded is not None and at < recorded:
            raise RegistryFault("history-rewritten", "recordedAt never goes back")
        recorded = at
        until = None if record.valid_until is UNSET else _instant(record.valid_until, "validUntil")
        revoked = None if record.revoked_at is UNSET else _instant(record.revoked_at, "revokedAt")
        valid_until = _earliest(valid_until, until, "validUntil")
        revoked_at = _earliest(revoked_at, revoked, "revokedAt")
    return valid_until, revoked_at


def _merge_histories(*histories: tuple[ValidityRecord, ...]) -> tuple[ValidityRecord, ...]:
    """One history of a key that is declared more than once; what both tell, they must tell alike."""
    merged: dict[int, ValidityRecord] = {}
    for record in (record for history in histories for record in history):
        if merged.setdefault(record.sequence, record) != record:
            raise RegistryFault("history-rewritten", "two declarations of a key tell its history differently")
    return tuple(merged[sequence] for sequence in sorted(merged))


class Registry:
    """One complete revision of one Organization's keys. Immutable: changes give the next revision."""

    __slots__ = ("_bindings", "_owners", "organization_id", "revision")

    def __init__(self, organization_id: str, revision: int = 0) -> None:
        """An empty Registry. Raises :class:`RegistryFault` when ``organization_id`` is not an absolute URI."""
        _identifier(organization_id, "organizationId")
        self.organization_id = organization_id
        self.revision = revision
        self._bindings: dict[str, Binding] = {}
        self._owners: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Any:
        return iter(self._bindings.values())

    def resolve(self, key_id: str) -> Binding | None:
        """The binding of a key, or None: this revision is complete, so None means unknown (R-6.4-30)."""
        return self._bindings.get(key_id)

    def keys_of(self, principal: Actor) -> tuple[Binding, ...]:
        """Every binding of a Principal, whether or not it is valid now."""
        return tuple(binding for binding in self._bindings.values() if binding.principal == principal)

    def all_keys(self) -> tuple[Binding, ...]:
        """Every binding of the Organization, in the order in which they were made."""
        return tuple(self._bindings.values())

    def bind(self, document: KeyBinding) -> Registry:
        """The revision that also holds this binding.

        Raises :class:`RegistryFault`: a bad point first, then a key ID, key or Principal that is taken otherwise
        (R-6.4-17, R-6.4-19, R-6.4-22). Restating a binding that is known gives the same Registry back.
        """
        binding = self._admit(prove(document))
        if self._bindings.get(binding.key_id) == binding:
            return self
        return self._next({binding.key_id: binding})

    def restrict(
        self, key_id: str, recorded_at: str, *, valid_until: str | None = None, revoked_at: str | None = None
    ) -> Registry:
        """The revision in which a key ends, or ends earlier. One more history record; the older ones stay.

        Raises :class:`RegistryFault` when the key is unknown, nothing is said, or an end would move later (R-6.4-33).
        """
        known = self._bindings.get(key_id)
        if known is None:
            raise RegistryFault("unknown-key", f"no key {key_id} is registered")
        if valid_until is None and revoked_at is None:
            raise RegistryFault("nothing-restricted", "state validUntil or revokedAt")
        history = known.document.validity_history
        record = ValidityRecord(
            sequence=len(history) + 1,
            recorded_at=recorded_at,
            valid_until=UNSET if valid_until is None else valid_until,
            revoked_at=UNSET if revoked_at is None else revoked_at,
        )
        return self._next({key_id: _with_history(known, (*history, record))})

    def _admit(self, binding: Binding) -> Binding:
        """The binding as it may stand here: immutable, and unique across the Organization (R-6.4-19, R-6.4-23)."""
        known = self._bindings.get(binding.key_id)
        if known is not None:
            if known.principal != binding.principal or known.public_key != binding.public_key:
                raise RegistryFault("key-id-rebound", f"{binding.key_id} already names another key or Principal")
            if known.valid_from != binding.valid_from:
                raise RegistryFault("valid-from-changed", "a key's first validFrom stands for ever")
            history = _merge_histories(known.document.validity_history, binding.document.validity_history)
            return known if history == known.document.validity_history else _with_history(known, history)
        if binding.public_key in self._owners:
            raise RegistryFault("public-key-reused", f"that key already is {self._owners[binding.public_key]}")
        return binding

    def _next(self, changed: dict[str, Binding]) -> Registry:
        following = Registry(self.organization_id, self.revision + 1)
        following._bindings = {**self._bindings, **changed}
        following._owners = {**self._owners, **{binding.public_key: key for key, binding in changed.items()}}
        return following

    def export(self) -> dict[str, Any]:
        """The evidence of this revision in its written form; the inverse of :meth:`from_evidence`."""
        document = RegistryDocument(
            organization_id=self.organization_id,
            bindings=tuple(binding.document for binding in self._bindings.values()),
        )
        exported: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
        return exported

    @classmethod
    def from_evidence(cls, evidence: Any, revision: int = 0, *, proven_points: bool = False) -> Registry:
        """The Registry that complete evidence proves. Raises :class:`RegistryFault` at the first thing it does not.

        Declaring a key twice is fine when both say the same; their histories are merged. ``proven_points`` is for
        evidence out of a node's own store: a key's point is proven once, at registration.
        """
        try:
            document: RegistryDocument = convert(evidence, RegistryDocument)
        except SchemaFault as fault:
            raise RegistryFault("malformed-evidence", str(fault)) from None
        registry = cls(document.organization_id, revision)
        if not document.bindings:
            raise RegistryFault("malformed-evidence", "evidence without any binding proves nothing")
        for entry in _merged(document.bindings):
            binding = registry._admit(prove(entry, proven_point=proven_points))
            registry._bindings[binding.key_id] = binding
            registry._owners[binding.public_key] = binding.key_id
        return registry


def _with_history(known: Binding, history: tuple[ValidityRecord, ...]) -> Binding:
    document = msgspec.structs.replace(known.document, validity_history=history)
    valid_until, revoked_at = _effective(history)
    return msgspec.structs.replace(known, valid_until=valid_until, revoked_at=revoked_at, document=document)


def _merged(bindings: Iterable[KeyBinding]) -> list[KeyBinding]:
    """Repeated declarations of a key as one, so that its history is judged whole."""
    merged: dict[str, KeyBinding] = {}
    repeated: list[KeyBinding] = []
    for entry in bindings:
        known = merged.get(entry.key_id)
        if known is None:
            merged[entry.key_id] = entry
            continue
        history = _merge_histories(known.validity_history, entry.validity_history)
        merged[entry.key_id] = msgspec.structs.replace(known, validity_history=history)
        # Everything but the history is compared when this declaration is admitted beside the first one.
        repeated.append(msgspec.structs.replace(entry, validity_history=history))
    return [*merged.values(), *repeated]


Established = Literal["yes", "no", "unknown"]


class RegistryReport(Struct, frozen=True, kw_only=True):
    """What a key-resolution adapter says about the evidence it found (R-6.4-27).

    Each property must be established; an adapter that cannot tell says so and gets no Registry.
    """

    evidence: Any
    organization_id: str
    revision: int
    available: bool = True
    scope: Established = "unknown"
    """Is this the evidence of that Organization and of no other?"""
    coherent: Established = "unknown"
    """Is it all of one revision?"""
    current: Established = "unknown"
    """Is that revision the applicable one, and not superseded?"""
    complete: Established = "unknown"
    """Is it everything, with no filter and no page missing?"""
    historical: Established = "unknown"
    """Does it hold the whole validity history?"""


class NoRegistry(Struct, frozen=True, gc=False):
    """There is no evidence to verify against: every document fails stage 4 (R-6.4-31). ``reason`` is for audit."""

    reason: str


def establish(report: RegistryReport, *, organization_id: str, newest_revision: int) -> Registry | NoRegistry:
    """The Registry behind an adapter's report, or why there is none.

    ``newest_revision`` is the latest revision the caller has ever been shown: an older one is superseded and is never
    current again (R-6.4-28).
    """
    if not report.available:
        return NoRegistry("registry-unavailable")
    if report.organization_id != organization_id:
        return NoRegistry("registry-scope-not-established")
    for name in ("scope", "coherent", "current", "complete", "historical"):
        if getattr(report, name) != "yes":
            return NoRegistry(f"registry-{name}-not-established")
    if report.revision < newest_revision:
        return NoRegistry("registry-superseded")
    try:
        registry = Registry.from_evidence(report.evidence, report.revision)
    except RegistryFault as fault:
        return NoRegistry(fault.reason)
    if registry.organization_id != organization_id:
        return NoRegistry("registry-scope-not-established")
    return registry
