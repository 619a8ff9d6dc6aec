"""What every adapter of the store port promises. A further adapter is one more entry of ``ADAPTERS``."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from msgspec import UNSET

from mwnode.authority.state import (
    ARTIFACTS,
    GROUPS,
    LEASES,
    MEMBERSHIPS,
    PRINCIPALS,
    ArtifactRow,
    GroupRow,
    LeaseRow,
    MembershipRow,
    PrincipalRow,
)
from mwnode.protocol.documents import (
    Actor,
    Artifact,
    CapabilityRef,
    FirstAdmissionRecord,
    Group,
    Lease,
    Membership,
    PolicyLogEntry,
    Producer,
    Signature,
)
from mwnode.protocol.instants import parse
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt
from mwnode.store.port import (
    NO_CHAIN,
    ORGANIZATION,
    AuditRow,
    NewEvent,
    ReadTransaction,
    Receipt,
    Store,
    WriteTransaction,
)
from tests.contract.memory import MemoryStore
from tests.patience import PATIENCE_SECONDS

ADAPTERS: dict[str, Callable[[Path], Store]] = {
    "lmdb": lambda directory: LmdbStore.open(directory / "node.mdb", durable=False),
    "memory": lambda directory: MemoryStore(),
}
G1, G2 = "urn:example:group:1", "urn:example:group:2"
ACTOR = "urn:example:agent:1"
START = "2030-01-01T00:00:00Z"


@pytest.fixture(params=sorted(ADAPTERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = ADAPTERS[request.param](tmp_path)
    yield opened
    opened.close()


def event(group_id: str, number: int, at: str = START, command_number: int | None = None) -> NewEvent:
    """An Event as far as a store looks at it."""
    event_id = f"urn:example:event:{group_id[-1:]}:{number}"
    raw = msgspec.json.encode({"eventId": event_id, "number": number})
    return NewEvent(group_id, event_id, at, at, raw, hashlib.sha256(raw).digest(), command_number)


def append(store: Store, *events: NewEvent) -> None:
    store.write(lambda txn: [txn.append_event(each) for each in events])


def policy_entry(number: int) -> PolicyLogEntry:
    return PolicyLogEntry(
        entry_id=f"urn:example:entry:{number}",
        decision="decided",
        actor=Actor(type="service", id="urn:example:service"),
        occurred_at=START,
        details={"number": number},
    )


def lease(number: int, expires_at: str, active: bool = True) -> LeaseRow:
    return LeaseRow(
        Lease(
            lease_id=f"urn:example:lease:{number}",
            lease_type="coordinator",
            mission_id="urn:example:mission:1",
            group_id=G1,
            holder_agent_id=ACTOR,
            session_epoch=1,
            coordinator_epoch=1,
            issued_at=START,
            starts_at=START,
            expires_at=expires_at,
            renewal_count=0,
            state="active" if active else "released",
            closed_at=UNSET if active else START,
            closure_reason=UNSET if active else "released",
        )
    )


def group_row(group_id: str) -> GroupRow:
    return GroupRow(
        Group(
            group_id=group_id,
            mission_id="urn:example:mission:1",
            state="active",
            main_conversation_id=f"{group_id}:mission",
            created_at=START,
        )
    )


# --- logs ---


def test_an_empty_store_knows_nothing(store: Store) -> None:
    with store.read() as view:
        assert view.groups() == []
        assert view.head_record(G1) is None
        assert view.head(G1) == 0
        assert view.last_occurred_at(G1) is None
        assert view.events(G1, 0, 10) == []
        assert view.event(G1, 1) is None
        assert view.event_by_id("urn:example:event:1:1") is None
        assert view.receipt(ACTOR, "urn:example:action:1") is None
        assert view.policy_log(None) == []
        assert view.next_due() is None
        assert view.organization_events(0, 10) == []
        assert view.event_facts(G1, 1) is None
        assert view.event_ids(G1, 0, 10) == []
        assert view.trimmed(G1) is None
        assert view.command(bytes(32)) is None
        assert view.command_by_number(1) is None
        assert view.admission(bytes(32)) is None
        assert not view.accepted(ACTOR, "urn:example:action:1")
        assert (view.cursor(ACTOR, G1), view.cursors(ACTOR)) == (0, [])
        assert view.due(parse("2999-01-01T00:00:00Z"), 10) == []
        assert view.document("sha256:" + "0" * 64) is None
        assert view.has_content("sha256:" + "0" * 64) is None
        assert view.audit(0, 10) == []
        assert view.meta("anything") is None


@pytest.mark.req("R-15.1-15")
def test_writers_of_many_threads_leave_no_gap_and_lose_nothing(store: Store) -> None:
    each, threads = 20, 6

    def work(thread: int) -> None:
        for number in range(each):
            append(store, event((G1, G2)[number % 2], thread * each + number))

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    with store.read() as view:
        for group_id in (G1, G2):
            stored = view.events(group_id, 0, 1000)
            assert [one.sequence for one in stored] == list(range(1, each * threads // 2 + 1))
            assert len({one.event_id for one in stored}) == len(stored)
            chain = NO_CHAIN
            for one in stored:
                chain = blake3(chain + one.signing_hash).digest()
                assert one.chain == chain


def test_a_store_is_closed_any_number_of_times(store: Store) -> None:
    append(store, event(G1, 1))
    store.close()
    store.close()


def test_the_suite_asks_for_everything_that_the_port_offers() -> None:
    """What is added to the port is asked of every adapter, or this fails."""
    asked = Path(__file__).read_text(encoding="utf-8")
    promised = {
        name
        for protocol in (ReadTransaction, WriteTransaction, Store)
        for kind in protocol.__mro__
        for name in vars(kind)
        if kind.__module__.startswith("mwnode.") and not name.startswith("_")
    }
    assert len(promised) > 40
    assert sorted(name for name in promised if f".{name}(" not in asked and f".{name}" not in asked) == []


@pytest.mark.req("R-4-06", "R-7.4-01")
def test_each_group_counts_for_itself_without_gaps(store: Store) -> None:
    append(store, event(G1, 1), event(G2, 1))
    append(store, event(G1, 2), event(G2, 2), event(G1, 3))
    with store.read() as view:
        assert [stored.sequence for stored in view.events(G1, 0, 10)] == [1, 2, 3]
        assert [stored.sequence for stored in view.events(G2, 0, 10)] == [1, 2]
        assert view.groups() == [G1, G2]
        assert view.event_ids(G1, 1, 3) == ["urn:example:event:1:2", "urn:example:event:1:3"]
        assert (view.head(G1), view.head(G2)) == (3, 2)


def test_events_come_back_byte_for_byte(store: Store) -> None:
    first = event(G1, 1)
    append(store, first)
    with store.read() as view:
        stored = view.event(G1, 1)
        assert stored is not None
        assert (stored.event, stored.signing_hash, stored.event_id) == (first.event, first.signing_hash, first.event_id)
        assert view.event_by_id(first.event_id) == stored


def test_the_chain_follows_from_every_event_before(store: Store) -> None:
    events = [event(G1, number) for number in range(1, 5)]
    append(store, *events)
    expected = NO_CHAIN
    with store.read() as view:
        for new, stored in zip(events, view.events(G1, 0, 10), strict=True):
            expected = blake3(expected + new.signing_hash).digest()
            assert stored.chain == expected
        head = view.head_record(G1)
    assert head is not None
    assert (head.sequence, head.chain) == (4, expected)


WINDOWS = {
    "from the start": (0, 2, [1, 2]),
    "from the middle": (2, 10, [3, 4, 5]),
    "nothing behind the head": (5, 10, []),
    "far behind the head": (500, 10, []),
    "a limit of nothing": (0, 0, []),
    "a position before the first": (-3, 2, [1, 2]),
}


@pytest.mark.parametrize("after,limit,sequences", WINDOWS.values(), ids=list(WINDOWS))
def test_a_window_of_a_log(store: Store, after: int, limit: int, sequences: list[int]) -> None:
    append(store, *(event(G1, number) for number in range(1, 6)))
    append(store, *(event(G2, number) for number in range(1, 6)))
    with store.read() as view:
        assert [stored.sequence for stored in view.events(G1, after, limit)] == sequences


def test_the_organization_has_a_log_of_its_own(store: Store) -> None:
    append(store, event(ORGANIZATION, 1), event(G1, 1), event(ORGANIZATION, 2))
    with store.read() as view:
        assert [stored.sequence for stored in view.organization_events(0, 10)] == [1, 2]
        assert [stored.sequence for stored in view.organization_events(1, 10)] == [2]
        assert view.groups() == [G1]


def test_the_order_of_commits_is_kept_over_all_logs(store: Store) -> None:
    append(store, event(G1, 1), event(G2, 1))
    append(store, event(G1, 2))
    with store.read() as view:
        facts = [view.event_facts(G1, 1), view.event_facts(G2, 1), view.event_facts(G1, 2)]
        positions = [fact.position for fact in facts if fact is not None]
        assert view.event_facts(G1, 3) is None
    assert positions == sorted(set(positions))
    assert len(positions) == 3


def test_a_tombstone_replaces_bytes_and_nothing_else(store: Store) -> None:
    def write(txn: WriteTransaction) -> None:
        number = txn.put_command(b"\x01" * 32, b"the words", START)
        txn.append_event(event(G1, 1, command_number=number))
        txn.append_event(event(G1, 2))

    store.write(write)
    with store.read() as view:
        before = view.events(G1, 0, 10)
    erased = msgspec.json.encode({"eventId": before[0].event_id, "payload": "erased"})
    store.write(lambda txn: txn.erase_event(G1, 1, erased))
    with store.read() as view:
        after = view.events(G1, 0, 10)
        assert view.command_by_number(1) == b""
    assert after[1] == before[1]
    assert after[0].event == erased
    assert (after[0].sequence, after[0].event_id) == (1, before[0].event_id)
    assert (after[0].signing_hash, after[0].chain) == (before[0].signing_hash, before[0].chain)


# --- all or nothing ---


class Stop(Exception):
    """Leaves a transaction half-way."""


@pytest.mark.req("R-15.1-15")
def test_a_failed_transaction_leaves_no_trace(store: Store) -> None:
    append(store, event(G1, 1))

    def half(txn: WriteTransaction) -> None:
        txn.append_event(event(G1, 2))
        txn.append_event(event(G2, 1))
        txn.put(GROUPS, group_row(G2))
        txn.put(LEASES, lease(1, "2030-01-01T00:10:00Z"))
        txn.put_receipt(ACTOR, "urn:example:action:1", Receipt(bytes(32), ((G1, 2),), None, 1))
        txn.put_policy(G1, policy_entry(1))
        txn.put_cursor(ACTOR, G1, 1)
        txn.put_meta("name", b"value")
        raise Stop

    with pytest.raises(Stop):
        store.write(half)
    with store.read() as view:
        assert view.head(G1) == 1
        assert view.groups() == [G1]
        assert view.get(GROUPS, G2) is None
        assert view.receipt(ACTOR, "urn:example:action:1") is None
        assert view.policy_log(G1) == []
        assert view.cursor(ACTOR, G1) == 0
        assert view.next_due() is None
        assert view.meta("name") is None
    append(store, event(G1, 2), event(G2, 1))
    with store.read() as view:
        assert view.head(G1) == 2, "the log goes on where it was"
        assert view.head(G2) == 1


def test_a_transaction_sees_its_own_writes(store: Store) -> None:
    def write(txn: WriteTransaction) -> None:
        assert txn.append_event(event(G1, 1)).sequence == 1
        assert txn.append_event(event(G1, 2)).sequence == 2
        assert txn.head(G1) == 2
        assert [stored.sequence for stored in txn.events(G1, 0, 10)] == [1, 2]
        assert txn.event_by_id("urn:example:event:1:2") is not None
        txn.put(PRINCIPALS, PrincipalRow(Actor(type="human", id="urn:example:human:1")))
        assert len(txn.all(PRINCIPALS)) == 1
        txn.put(LEASES, lease(1, "2030-01-01T00:10:00Z"))
        assert txn.next_due() == parse("2030-01-01T00:10:00Z")
        txn.put_receipt(ACTOR, "urn:example:action:1", Receipt(bytes(32), ((G1, 1),), None, 1))
        assert txn.accepted(ACTOR, "urn:example:action:1")
        txn.put_cursor(ACTOR, G1, 2)
        assert txn.cursor(ACTOR, G1) == 2
        txn.put_policy(None, policy_entry(1))
        assert len(txn.policy_log(None)) == 1

    store.write(write)


def test_a_reader_keeps_the_state_it_began_with(store: Store) -> None:
    append(store, event(G1, 1))
    with store.read() as view:
        done = threading.Thread(target=append, args=(store, event(G1, 2)))
        done.start()
        done.join(timeout=PATIENCE_SECONDS)
        assert not done.is_alive(), "a reader must not hold up the writer"
        assert view.head(G1) == 1
        assert len(view.events(G1, 0, 10)) == 1
    with store.read() as view:
        assert view.head(G1) == 2


def test_the_result_of_a_transaction_is_returned(store: Store) -> None:
    assert store.write(lambda txn: txn.append_event(event(G1, 1)).sequence) == 1


# --- Commands ---


def test_a_receipt_tells_what_a_command_led_to(store: Store) -> None:
    receipt = Receipt(b"\x07" * 32, ((G1, 2), (G1, 1), (ORGANIZATION, 1)), b'{"record":1}', 1)

    def write(txn: WriteTransaction) -> None:
        for new in (event(G1, 1), event(G1, 2), event(ORGANIZATION, 1)):
            txn.append_event(new)
        txn.put_receipt(ACTOR, "urn:example:action:1", receipt)

    store.write(write)
    with store.read() as view:
        assert view.receipt(ACTOR, "urn:example:action:1") == receipt
        assert view.accepted(ACTOR, "urn:example:action:1")
        assert view.receipt("urn:example:agent:2", "urn:example:action:1") is None, "an Action ID belongs to its actor"
        assert not view.accepted(ACTOR, "urn:example:action:2")


def test_an_action_id_is_bound_once(store: Store) -> None:
    def bind(txn: WriteTransaction) -> None:
        txn.put_receipt(ACTOR, "urn:example:action:1", Receipt(bytes(32), (), None, 1))

    store.write(bind)
    with pytest.raises(StoreCorrupt):
        store.write(bind)


def test_accepted_commands_are_found_by_hash_and_number(store: Store) -> None:
    hashes = [hashlib.sha256(b"%d" % number).digest() for number in range(3000)]

    def write(txn: WriteTransaction) -> None:
        for number, signing_hash in enumerate(hashes, start=1):
            assert txn.put_command(signing_hash, b"command %d" % number, START) == number

    store.write(write)
    with store.read() as view:
        for number in (1, 2, 1023, 1024, 1025, 2999, 3000):
            assert view.command(hashes[number - 1]) == b"command %d" % number
            assert view.command_by_number(number) == b"command %d" % number
        assert view.command(bytes(32)) is None
        assert view.command_by_number(3001) is None


def admission(signing_hash: str, accepted_at: str = START) -> FirstAdmissionRecord:
    return msgspec.convert(
        {
            "protocolVersion": "0.1",
            "admissionRecordId": f"urn:example:admission:{accepted_at}",
            "organizationId": "urn:example:organization",
            "documentKind": "artifact",
            "signingHash": signing_hash,
            "keyId": "urn:example:key",
            "principal": {"type": "agent", "id": ACTOR},
            "trustedAcceptedAt": accepted_at,
            "acceptedBy": {"type": "service", "id": "urn:example:authority"},
        },
        FirstAdmissionRecord,
    )


@pytest.mark.req("R-6.4-60")
def test_racing_admissions_leave_one_record_that_all_are_given(store: Store) -> None:
    signing_hash = f"sha256:{'ab' * 32}"
    given: list[FirstAdmissionRecord] = []
    barrier = threading.Barrier(20)

    def race(number: int) -> None:
        mine = admission(signing_hash, f"2030-01-01T00:00:{number:02}.5+05:30")
        barrier.wait()
        given.append(store.write(lambda txn: txn.put_admission(mine)))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 20
    assert len(set(map(repr, given))) == 1
    with store.read() as view:
        assert view.admission(bytes.fromhex("ab" * 32)) == given[0], "spelling of the time included"
        assert view.admission(bytes(32)) is None


# --- rows and time ---


def test_rows_are_set_and_read_by_key(store: Store) -> None:
    human = PrincipalRow(Actor(type="human", id="urn:example:human:1"), "First")
    store.write(lambda txn: txn.put(PRINCIPALS, human))
    renamed = PrincipalRow(human.principal, "Second")
    store.write(lambda txn: txn.put(PRINCIPALS, renamed))
    with store.read() as view:
        assert view.get(PRINCIPALS, "human urn:example:human:1") == renamed
        assert view.get(PRINCIPALS, "agent urn:example:human:1") is None
        assert view.all(PRINCIPALS) == [renamed]


def test_rows_are_listed_by_group_and_sorted_by_key(store: Store) -> None:
    def write(txn: WriteTransaction) -> None:
        for number in (3, 1, 2):
            for group in (G1, G2):
                txn.put(MEMBERSHIPS, membership(group, number))

    store.write(write)
    store.write(lambda txn: txn.put(MEMBERSHIPS, membership(G1, 2)))
    with store.read() as view:
        assert [row.membership.member.id[-1] for row in view.in_group(MEMBERSHIPS, G1)] == ["1", "2", "3"]
        assert view.in_group(MEMBERSHIPS, "urn:example:group:none") == []


@pytest.mark.req("R-13.1-19")
def test_what_was_made_of_something_is_found_by_it(store: Store) -> None:
    first, second, third = ("sha256:" + digit * 64 for digit in "12f")

    def write(txn: WriteTransaction) -> None:
        for group in (G1, G2):
            for number in range(5):
                txn.put(ARTIFACTS, made(group, number, first))
        txn.put(ARTIFACTS, made(G2, 5, first, second))

    store.write(write)
    store.write(lambda txn: txn.put(ARTIFACTS, made(G2, 5, first, second)))
    with store.read() as view:
        assert set(view.deriving_groups(first)) == {G1, G2}
        assert list(view.deriving_groups(second)) == [G2]
        assert list(view.deriving_groups(third)) == list(view.deriving_groups("no hash")) == []
        every = {f"urn:example:artifact:{G1[-1]}:{number}" for number in range(5)}
        found = view.derivations(first, G1, None, 100)
        assert set(found) == every
        assert len(found) == 5
        assert view.derivations(first, G1, None, 2) == found[:2]
        assert view.derivations(first, G1, found[1], 2) == found[2:4]
        assert view.derivations(first, G1, found[4], 2) == []
        assert view.derivations(second, G2, None, 9) == [f"urn:example:artifact:{G2[-1]}:5"]
        assert view.derivations(second, G1, None, 9) == view.derivations("no hash", G1, None, 9) == []
        assert view.derivations(first, "urn:example:group:none", None, 9) == []

    def half(txn: WriteTransaction) -> None:
        txn.put(ARTIFACTS, made(G1, 9, third))
        assert view_of(txn) == [G1]
        raise RuntimeError("undone")

    def view_of(txn: WriteTransaction) -> list[str]:
        return list(txn.deriving_groups(third))

    with pytest.raises(RuntimeError, match="undone"):
        store.write(half)
    with store.read() as view:
        assert list(view.deriving_groups(third)) == []


def made(group_id: str, number: int, *sources: str) -> ArtifactRow:
    artifact = Artifact(
        artifact_id=f"urn:example:artifact:{group_id[-1]}:{number}",
        content_hash="sha256:" + "0" * 64,
        uri="urn:example:bytes",
        size_bytes=0,
        media_type="text/plain",
        schema_uri="urn:example:schema",
        producer=Producer(
            agent_id=ACTOR, agent_card_version=1, capabilities=(CapabilityRef(id="example.build", version="1.0.0"),)
        ),
        mission_id="urn:example:mission:1",
        group_id=group_id,
        work_item_id="urn:example:work:1",
        source_artifact_hashes=sources,
        tool_versions=(),
        model_versions=(),
        classification="internal",
        created_at=START,
        signature=Signature(algorithm="Ed25519", key_id="urn:example:key:1", created_at=START, value="A" * 86),
    )
    return ArtifactRow(artifact, 1)


def membership(group_id: str, number: int) -> MembershipRow:
    return MembershipRow(
        Membership(
            membership_id=f"urn:example:membership:{number}",
            mission_id="urn:example:mission:1",
            group_id=group_id,
            member=Actor(type="agent", id=f"urn:example:agent:{number}"),
            role="worker",
            scopes=("message.read",),
            state="active",
            membership_epoch=1,
            granted_at=START,
            visibility_start_sequence=1,
            activated_at=START,
        )
    )


@pytest.mark.req("R-2-02")
def test_a_lease_without_its_start_is_refused_and_nothing_of_the_transaction_stays(store: Store) -> None:
    incomplete = LeaseRow(msgspec.structs.replace(lease(1, "2030-01-01T00:10:00Z").lease, starts_at=UNSET))

    def write(txn: WriteTransaction) -> None:
        txn.append_event(event(G1, 1))
        txn.put(LEASES, incomplete)

    with pytest.raises(msgspec.ValidationError, match="startsAt"):
        store.write(write)
    with store.read() as view:
        assert view.head(G1) == 0
        assert view.all(LEASES) == []


def test_due_rows_come_in_time_and_only_then(store: Store) -> None:
    def write(txn: WriteTransaction) -> None:
        txn.put(LEASES, lease(1, "2030-01-01T00:10:00.0000005Z"))
        txn.put(LEASES, lease(2, "2030-01-01T00:05:00Z"))
        txn.put(LEASES, lease(3, "2030-01-01T00:07:00+00:00"))
        txn.put(LEASES, lease(4, "2030-01-01T00:01:00Z", active=False))

    def numbers(view: ReadTransaction, until: str) -> list[str]:
        return [entry.key[-1] for entry in view.due(parse(until), 10)]

    store.write(write)
    with store.read() as view:
        assert view.next_due() == parse("2030-01-01T00:05:00Z")
        assert numbers(view, "2030-01-01T00:04:59.999999Z") == []
        assert numbers(view, "2030-01-01T00:05:00Z") == ["2"]
        assert numbers(view, "2030-01-01T00:10:00Z") == ["2", "3"], "not due before the last digit says so"
        assert numbers(view, "2030-01-01T00:10:00.0000005Z") == ["2", "3", "1"]
        assert len(view.due(parse("2031-01-01T00:00:00Z"), 2)) == 2


def test_due_times_follow_their_rows(store: Store) -> None:
    store.write(lambda txn: txn.put(LEASES, lease(1, "2030-01-01T00:05:00Z")))
    store.write(lambda txn: txn.put(LEASES, lease(1, "2030-01-01T00:09:00Z")))
    with store.read() as view:
        assert view.next_due() == parse("2030-01-01T00:09:00Z")
    store.write(lambda txn: txn.put(LEASES, lease(1, "2030-01-01T00:09:00Z", active=False)))
    with store.read() as view:
        assert view.next_due() is None


def test_a_due_time_can_be_dropped_or_moved_without_its_row(store: Store) -> None:
    store.write(lambda txn: txn.put(LEASES, lease(1, "2030-01-01T00:05:00Z")))
    until = parse("2030-01-01T00:05:00Z")
    store.write(lambda txn: txn.postpone_due(txn.due(until, 1)[0], parse("2030-01-01T00:06:00Z")))
    with store.read() as view:
        assert view.next_due() == parse("2030-01-01T00:06:00Z")
    store.write(lambda txn: txn.drop_due(txn.due(parse("2030-01-01T00:06:00Z"), 1)[0]))
    with store.read() as view:
        assert view.next_due() is None
        assert view.get(LEASES, "urn:example:lease:1") is not None


# --- the rest ---


def test_policy_logs_only_grow_each_in_its_order(store: Store) -> None:
    for number in range(1, 4):
        store.write(lambda txn, number=number: txn.put_policy(G1, policy_entry(number)))  # type: ignore[misc]
    store.write(lambda txn: txn.put_policy(None, policy_entry(9)))
    with store.read() as view:
        assert view.policy_log(G1) == [policy_entry(number) for number in range(1, 4)]
        assert view.policy_log(G1, after=1, limit=1) == [policy_entry(2)]
        assert view.policy_log(None) == [policy_entry(9)]
        assert view.policy_log(G2) == []


@pytest.mark.req("R-16-05", "R-16-58")
def test_a_cursor_moves_forward_only_and_deletes_nothing(store: Store) -> None:
    append(store, *(event(G1, number) for number in range(1, 6)))
    for sequence in (3, 5, 2):
        store.write(lambda txn, sequence=sequence: txn.put_cursor(ACTOR, G1, sequence))  # type: ignore[misc]
    store.write(lambda txn: txn.put_cursor(ACTOR, G2, 1))
    with store.read() as view:
        assert view.cursor(ACTOR, G1) == 5
        assert sorted(view.cursors(ACTOR)) == [(G1, 5), (G2, 1)]
        assert view.cursors("urn:example:agent:2") == []
        assert len(view.events(G1, 0, 10)) == 5, "an acknowledged Event stays for everybody"


def test_documents_are_named_by_their_content(store: Store) -> None:
    content_hash = store.write(lambda txn: txn.put_document(b"a document"))
    assert content_hash == f"sha256:{hashlib.sha256(b'a document').hexdigest()}"
    assert store.write(lambda txn: txn.put_document(b"a document")) == content_hash
    with store.read() as view:
        assert view.document(content_hash) == b"a document"
        assert view.document(f"sha256:{'0' * 64}") is None
        assert view.document("no hash at all") is None
    store.write(lambda txn: [txn.drop_document(named) for named in (content_hash, content_hash, "no hash at all")])
    with store.read() as view:
        assert view.document(content_hash) is None


def test_protected_diagnostics_keep_stage_and_reason(store: Store) -> None:
    rows = [AuditRow(START, "signature", f"reason {number}", "command", "urn:example:key") for number in (1, 2, 3)]
    numbers = [store.write(lambda txn, row=row: txn.put_audit(row)) for row in rows]  # type: ignore[misc]
    assert numbers == [1, 2, 3]
    with store.read() as view:
        assert view.audit(0, 10) == list(zip(numbers, rows, strict=True))
        assert view.audit(2, 10) == [(3, rows[2])]


def test_named_values(store: Store) -> None:
    store.write(lambda txn: txn.put_meta("name", b"one"))
    store.write(lambda txn: txn.put_meta("name", b"two"))
    with store.read() as view:
        assert view.meta("name") == b"two"
        assert view.meta("other") is None
