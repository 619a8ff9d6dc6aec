"""One signed file that carries Groups between nodes that never meet, and proves itself to whoever knows the root key.

The file is a signed header followed by a store that holds nothing but what the Groups stand on. Whoever receives it
needs one thing beforehand: the Organization's root key. Every other key is followed back to it, Command by Command;
then the store is verified like any other, and only then does anything of it enter the receiving store, all or nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from mwnode.authority.state import GROUPS
from mwnode.files import make_durable
from mwnode.protocol import jcs
from mwnode.protocol.commands import Binding
from mwnode.protocol.documents import Actor, Signature
from mwnode.protocol.instants import parse
from mwnode.store.carry import TargetExists
from mwnode.store.environment import LmdbReading, LmdbStore, LmdbWriting
from mwnode.store.errors import StoreCorrupt, StoreError, not_written
from mwnode.store.fold import rebuild
from mwnode.store.founding import Founding, keep_founding
from mwnode.store.keychain import BrokenChain, follow_keys, root_of
from mwnode.store.layout import U32
from mwnode.store.transfer import Conflict, copy, known_better, select
from mwnode.store.trim import related_groups
from mwnode.store.verify import verify
from mwnode.trust import ed25519
from mwnode.trust.keys import SigningKey, sign_mapping

Progress = Callable[[str, int, int], None]

MAGIC: Final = b"mwnode bundle\n"
FORMAT: Final = 1
HEADER_BYTES_MAX: Final = 64 * 1024**2
_PIECE: Final = 1024**2


class BundleFault(StoreError):
    """The bundle is not what its root key vouches for, or cannot be read; nothing was imported."""


class Header(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What stands before the store. ``signature`` is by ``authority_service`` over everything else."""

    format: int
    organization_id: str
    created_at: str
    registry_service: Actor
    authority_service: Actor
    root: Binding
    groups: tuple[str, ...]
    events: int
    artifacts: int
    bytes: int
    digest: str
    signature: Signature


class Carried(Struct, frozen=True):
    """What was exported or imported. ``related`` are Groups that had to go along."""

    groups: tuple[str, ...]
    related: tuple[str, ...]
    events: int
    artifacts: int
    bytes: int


# --- export -----------------------------------------------------------------------------------------------------------


def export(
    source: Path,
    target: Path,
    *,
    groups: Iterable[str] | None,
    registry_service: Actor,
    authority_key: SigningKey,
    created_at: str,
    progress: Progress,
) -> Carried:
    """Write Groups of a store, which may be in use, into a new bundle; all Groups without ``groups``.

    Groups of a family go together, for their budgets and results are one another's. Raises TargetExists, KeyError for
    an unknown Group, StoreCorrupt when the source does not verify, StoreFull.
    """
    if target.exists():
        raise TargetExists(f"{target} exists already; choose another name or move it away")
    store = LmdbStore.open(source, read_only=True)
    try:
        with store.read() as view, _workshop(target) as place:
            named = tuple(view.groups()) if groups is None else tuple(dict.fromkeys(groups))
            for group_id in named:
                if view.get(GROUPS, group_id) is None:
                    raise KeyError(group_id)
            wanted = related_groups(view, set(named))
            chosen = select(view, [group_id for group_id in view.groups() if group_id in wanted], lambda record: False)
            root = root_of(view, registry_service)
            content = place / "bundle.mdb"
            made = LmdbStore.open(content, durable=False)
            try:
                authority = authority_key.principal
                made.write(lambda txn: found(txn, view.organization_id, root, authority))
                copy(view, made, chosen, lambda record: False, progress)
                rebuild(made, progress)
                report = verify(made, progress=progress)
                if not report.ok:
                    raise StoreCorrupt(f"what was exported does not verify: {report.findings[0]}; run `mwnode verify`")
                made.file.copy(place / "compact.mdb", compact=True)
            finally:
                made.close()
            header = {
                "format": FORMAT,
                "organizationId": view.organization_id,
                "createdAt": created_at,
                "registryService": msgspec.to_builtins(registry_service),
                "authorityService": msgspec.to_builtins(authority),
                "root": msgspec.to_builtins(root),
                "groups": list(chosen.groups),
                "events": report.events,
                "artifacts": report.artifacts,
                "bytes": (place / "compact.mdb").stat().st_size,
                "digest": _digest(place / "compact.mdb"),
            }
            signed = jcs.canonical(sign_mapping(header, authority_key, created_at))
            _assemble(place / "bundle", signed, place / "compact.mdb")
            os.link(place / "bundle", target)
            make_durable(target.parent)
    except OSError as error:
        raise not_written(target, error) from error
    finally:
        store.close()
    related = tuple(group_id for group_id in chosen.groups if group_id not in named)
    return Carried(chosen.groups, related, report.events, report.artifacts, target.stat().st_size)


def found(txn: LmdbWriting, organization_id: str, root: Binding, authority: Actor) -> None:
    """The first rows of a store of that Organization: its root key, and the services that it vouches for."""
    txn.put_meta("organization", organization_id.encode())
    txn.put_authority(authority)
    keep_founding(txn, Founding(root, (root.principal, authority)))


@contextmanager
def _workshop(beside: Path) -> Iterator[Path]:
    """A directory for half-done work on the same disk; gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=".mwnode-", dir=beside.parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _assemble(target: Path, header: bytes, content: Path) -> None:
    with target.open("xb") as file, content.open("rb") as body:
        os.chmod(target, 0o600)
        file.write(MAGIC + U32.pack(len(header)) + header)
        shutil.copyfileobj(body, file, _PIECE)
        file.flush()
        os.fsync(file.fileno())


# --- reading ----------------------------------------------------------------------------------------------------------


def is_bundle(path: Path) -> bool:
    """Whether a file begins as a bundle does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(bundle: Path) -> Header:
    """The header of a bundle; nothing of it is proven yet. BundleFault when it is none."""
    return _header(bundle)[0]


def _header(bundle: Path) -> tuple[Header, bytes, int]:
    with bundle.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BundleFault(f"{bundle} is no bundle of mwnode")
        prefix = file.read(U32.size)
        size = int(U32.unpack(prefix)[0]) if len(prefix) == U32.size else 0
        raw = file.read(size) if size <= HEADER_BYTES_MAX else b""
        start = file.tell()
    try:
        number = msgspec.json.decode(raw, type=dict[str, Any]).get("format")
        if isinstance(number, int) and number > FORMAT:
            raise BundleFault(f"{bundle} has format {number}, this mwnode knows {FORMAT}: install a newer mwnode")
        return msgspec.json.decode(raw, type=Header), raw, start
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BundleFault(f"the header of {bundle} cannot be read: {error}") from error


@contextmanager
def opened(bundle: Path, root: Binding, place: Path, progress: Progress) -> Iterator[tuple[Header, LmdbStore]]:
    """A bundle's header and store, proven from that root key alone. BundleFault names what is not as it must be."""
    header, raw, start = _header(bundle)
    if msgspec.structs.replace(root, validity_history=()) != header.root or root.principal != header.registry_service:
        raise BundleFault(
            f"{bundle} goes back to key {header.root.key_id} ({header.root.public_key}), "
            "which is not the root key known here"
        )
    content = place / "content.mdb"
    with bundle.open("rb") as file, content.open("xb") as body:
        file.seek(start)
        shutil.copyfileobj(file, body, _PIECE)
    if content.stat().st_size != header.bytes or _digest(content) != header.digest:
        raise BundleFault(f"{bundle} is cut short or was changed: its digest is another")
    try:
        store = LmdbStore.open(content, durable=False)
    except StoreError as error:
        raise BundleFault(f"the store in {bundle} cannot be opened: {error}") from error
    try:
        with store.read() as view:
            _check(bundle, header, raw, view, root)
        report = verify(store, progress=progress)
        if not report.ok:
            finding = report.findings[0]
            raise BundleFault(f"{bundle} does not verify: {finding.kind}, {finding.where}: {finding.detail}")
        yield header, store
    finally:
        store.close()


def _check(bundle: Path, header: Header, raw: bytes, view: LmdbReading, root: Binding) -> None:
    """The header's signature, and every key of the store, go back to the root."""
    if view.organization_id != header.organization_id or view.authority != header.authority_service:
        raise BundleFault(f"{bundle}: the store is not of the Organization that the header names")
    if set(view.groups()) != set(header.groups):
        raise BundleFault(f"{bundle}: the store holds other Groups than the header names")
    try:
        registry = follow_keys(view, root, header.authority_service)
    except BrokenChain as error:
        raise BundleFault(f"{bundle}: {error}") from error
    signature = header.signature
    binding = registry.resolve(signature.key_id)
    unsigned = {name: value for name, value in msgspec.json.decode(raw).items() if name != "signature"}
    if (
        binding is None
        or binding.principal != header.authority_service
        or not binding.valid_at(parse(header.created_at))
        or not ed25519.verify(
            binding.public_key,
            jcs.canonical(unsigned),
            ed25519.decode_base64url(signature.value),
        )
    ):
        raise BundleFault(f"{bundle} is not signed by the Organization's authority")


# --- import -----------------------------------------------------------------------------------------------------------


def bring_in(bundle: Path, target: Path, *, root: Binding | None, progress: Progress) -> Carried:
    """Add a bundle's Groups to the store at ``target``, which nobody has open, or make the store with them.

    ``root`` is the root key that one knows; without it the store's own root is trusted. A new file is built beside the
    old one, verified whole, and put in its place as the last step: a crash leaves one or the other. Raises StoreBusy,
    BundleFault, Conflict when a Group is there already, StoreFull; nothing was changed then.
    """
    try:
        with _workshop(target) as place:
            return _bring_in(bundle, target, place, root, progress)
    except OSError as error:
        raise not_written(target, error) from error


def _bring_in(bundle: Path, target: Path, place: Path, root: Binding | None, progress: Progress) -> Carried:
    header = read_header(bundle)
    held = LmdbStore.open(target) if target.exists() else None
    try:
        part = place / "node.mdb"
        if held is not None:
            with held.read() as view:
                if view.organization_id != header.organization_id:
                    raise Conflict(
                        f"{bundle} belongs to Organization {header.organization_id}, this HOME to "
                        f"{view.organization_id}: import it into a HOME of its own with --root"
                    )
                own = root_of(view, header.registry_service)
            if root is not None and root.public_key != own.public_key:
                raise BundleFault("the root key given is not the root key of this HOME")
            root = own
            held.file.copy(part, compact=False)
        if root is None:
            raise BundleFault("a new HOME knows no root key: give the Organization's by --root")
        with opened(bundle, root, place, progress) as (_, source):
            made = LmdbStore.open(part, durable=False)
            try:
                if held is None:
                    founded = root
                    made.write(lambda txn: found(txn, header.organization_id, founded, header.authority_service))
                with made.read() as view:
                    skips = known_better(view)
                with source.read() as carried:
                    chosen = select(carried, header.groups, skips)
                    copy(carried, made, chosen, skips, progress)
                rebuild(made, progress)
                report = verify(made, progress=progress)
            finally:
                made.close()
        if not report.ok:
            finding = report.findings[0]
            raise StoreCorrupt(f"with {bundle} the store would not verify: {finding.where}: {finding.detail}")
        make_durable(part)
        # The owner's lock is a file beside the store: it is held until the new file is in place.
        os.rename(part, target)
        make_durable(target.parent)
    finally:
        if held is not None:
            held.close()
    return Carried(header.groups, (), chosen.events, header.artifacts, bundle.stat().st_size)
