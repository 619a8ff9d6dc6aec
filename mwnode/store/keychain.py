"""Following every key of a store back to the Organization's root key (R-6.4-18).

The root key is bound by the file itself; each other key, Principal and profile entered by a signed Command of the
registry service, admitted while its own key was valid. Replaying those Commands from the root gives the Registry anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mwnode.authority.evolve import evolve
from mwnode.authority.organization import record, written
from mwnode.authority.state import KEYS, PRINCIPALS, PROFILES, KeyRow, R, Table
from mwnode.authority.view import Overlay
from mwnode.protocol import strict_json
from mwnode.protocol.commands import (
    CORE,
    EXT,
    PAYLOADS,
    AgentCardRegister,
    Binding,
    KeyBind,
    KeyRestrict,
    ProfileRegister,
)
from mwnode.protocol.documents import Actor, Command, PolicyLogEntry
from mwnode.protocol.instants import parse
from mwnode.store.environment import LmdbReading
from mwnode.store.errors import StoreError
from mwnode.store.fold import replayed_fact
from mwnode.store.layout import U64
from mwnode.store.log_records import LogRecord, decode_command_record
from mwnode.store.port import ORGANIZATION
from mwnode.trust.registry import KeyBinding, Registry, RegistryFault
from mwnode.trust.verification import Failure, verify

KINDS: Final = frozenset(
    {
        f"{CORE}.key_bind",
        f"{CORE}.key_restrict",
        f"{CORE}.profile_register",
        f"{EXT}.registry.agent_card_register",
    }
)
_PAGE: Final = 500


class BrokenChain(StoreError):
    """Something in the Registry does not go back to the root key."""


class _Nothing:
    """The view of an Organization that has nothing yet."""

    def get(self, table: Table[R], key: str) -> R | None:
        return None

    def in_group(self, table: Table[R], group_id: str) -> list[R]:
        return []

    def all(self, table: Table[R]) -> list[R]:
        return []

    def head(self, group_id: str) -> int:
        return 0

    def last_occurred_at(self, group_id: str) -> str | None:
        return None

    def accepted(self, actor_id: str, action_id: str) -> bool:
        return False

    def has_content(self, content_hash: str) -> int | None:
        return None

    def event_ids(self, group_id: str, after: int, through: int) -> list[str]:
        return []

    def policy_log(self, group_id: str | None, after: int = 0, limit: int = 1000) -> list[PolicyLogEntry]:
        return []


def root_of(view: LmdbReading, registry_service: Actor) -> Binding:
    """The root key: the one of the registry service that no Command bound. BrokenChain unless there is just one."""
    bound = {
        payload.binding.key_id
        for _, _, _, command in registry_commands(view)
        if isinstance(payload := _payload(command), KeyBind)
    }
    roots = [
        row.binding
        for row in view.each(KEYS)
        if row.binding.principal == registry_service and row.binding.key_id not in bound
    ]
    if len(roots) != 1:
        raise BrokenChain(f"{len(roots)} keys of {registry_service.id} are bound by no Command; one is the root")
    return msgspec.structs.replace(roots[0], validity_history=())


def registry_commands(view: LmdbReading) -> Iterator[tuple[int, str, bytes, Command]]:
    """Number, acceptance time, bytes and content of every Command that changed the Registry, in order."""
    for key, value in view.pages.scan("commands", b""):
        number = int(U64.unpack(key)[0])
        _, accepted_at, raw = decode_command_record(number, value)
        if b'"kind":"ext.' not in raw:
            continue
        command = strict_json.trusted(raw, Command)
        if command.kind in KINDS:
            yield number, accepted_at, raw, command


def _payload(command: Command) -> Any:
    return msgspec.convert(command.payload, PAYLOADS[command.kind])


def follow_keys(view: LmdbReading, root: Binding, authority: Actor) -> Registry:
    """The Registry that the root key vouches for. BrokenChain when the store's rows say anything else."""
    rows = Overlay(_Nothing())
    rows.put(KEYS, KeyRow(msgspec.structs.replace(root, validity_history=()), 1))
    try:
        registry = Registry.from_evidence({"organizationId": view.organization_id, "bindings": [written(root)]})
        cards = _card_records(view)
        for number, accepted_at, raw, command in registry_commands(view):
            _admit(registry, root, number, accepted_at, raw)
            before = {key: row for (code, key), row in _keys_of(rows)}
            _apply(view, rows, command, accepted_at, cards.get(number))
            for (_, key), row in _keys_of(rows):
                if before.get(key) != row:
                    registry = registry.bind(msgspec.convert(written(row.binding), KeyBinding))
    except (RegistryFault, msgspec.MsgspecError) as fault:
        raise BrokenChain(f"the Registry's Commands cannot be followed: {fault}") from fault
    _compare(view, rows, root, authority)
    return registry


def _keys_of(rows: Overlay) -> Iterator[tuple[tuple[int, str], KeyRow]]:
    for table, row in rows.changes.values():
        if isinstance(row, KeyRow):
            yield (table.code, row.binding.key_id), row


def _admit(registry: Registry, root: Binding, number: int, accepted_at: str, raw: bytes) -> None:
    verdict = verify(raw, "command", registry, bytes_max=len(raw))
    if isinstance(verdict, Failure):
        raise BrokenChain(f"Command {number} changed the Registry and does not verify: {verdict.reason}")
    binding = registry.resolve(verdict.key_id)
    if verdict.principal != root.principal or binding is None or not binding.valid_at(parse(accepted_at)):
        raise BrokenChain(f"Command {number} changed the Registry and is not of the registry service's valid key")


def _card_records(view: LmdbReading) -> dict[int, LogRecord]:
    """The Organization-scoped Event of each Card, by the number of its Command."""
    found: dict[int, LogRecord] = {}
    sequence = 0
    while page := view.events(ORGANIZATION, sequence, _PAGE):
        for stored in page:
            sequence = stored.sequence
            event = view.record(ORGANIZATION, sequence)
            if event is not None and event.command_number is not None and b".agent_card_registered" in event.event:
                found[event.command_number] = event
    return found


def _apply(view: LmdbReading, rows: Overlay, command: Command, accepted_at: str, card: LogRecord | None) -> None:
    payload = _payload(command)
    if isinstance(payload, (KeyBind, KeyRestrict, ProfileRegister)):
        record(rows, payload, accepted_at)
    elif isinstance(payload, AgentCardRegister) and card is not None:
        evolve(rows, replayed_fact(view, card))


def _compare(view: LmdbReading, rows: Overlay, root: Binding, authority: Actor) -> None:
    """Nothing is in the store that the Commands do not tell of."""
    for row in view.each(KEYS):
        if rows.get(KEYS, row.binding.key_id) != row:
            raise BrokenChain(f"key {row.binding.key_id} does not go back to the root key")
    for principal in view.each(PRINCIPALS):
        told = rows.get(PRINCIPALS, PRINCIPALS.key(principal))
        if told != principal and (told is not None or principal.principal not in (root.principal, authority)):
            raise BrokenChain(f"{PRINCIPALS.key(principal)} was not registered by the root key")
    for profile in view.each(PROFILES):
        if rows.get(PROFILES, PROFILES.key(profile)) != profile:
            raise BrokenChain(f"Extension Profile {PROFILES.key(profile)} does not go back to the root key")
