"""The Registry: what it refuses, what it keeps, and evidence judged as a whole."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mwnode.protocol import instants
from mwnode.trust import ed25519, keys
from mwnode.trust.registry import (
    KeyBinding,
    NoRegistry,
    Registry,
    RegistryFault,
    RegistryReport,
    ValidityRecord,
    establish,
    prove,
)
from mwnode.trust.verification import Failure, verify
from tests.trust import makers
from tests.trust.makers import AGENT, ALL_KEYS, HUMAN, NOW, ORGANIZATION, OTHER_AGENT, binding, raw, registry, signed
from tests.trust.test_ed25519 import BAD_POINTS

replace = msgspec.structs.replace
LATER = "2026-08-01T00:00:00Z"


def refused(act: Callable[[], Any], reason: str) -> None:
    with pytest.raises(RegistryFault) as caught:
        act()
    assert caught.value.reason == reason


def record(sequence: int, recorded_at: str = NOW, **ends: str) -> ValidityRecord:
    return ValidityRecord(sequence=sequence, recorded_at=recorded_at, **ends)


# --- one binding ------------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-20", "R-6.4-21", "R-6.4-22")
@pytest.mark.parametrize("point", ["identity", *BAD_POINTS])
def test_a_bad_point_is_refused_before_anything_else(point: str) -> None:
    encoding = BAD_POINTS.get(point, ed25519.IDENTITY)
    # The key ID is taken as well, and the point is still what is named.
    bad = replace(binding(AGENT), public_key=ed25519.encode_base64url(encoding), principal=HUMAN.principal)
    refused(lambda: registry().bind(bad), "weak-public-key")


@pytest.mark.req("R-6.4-20", "R-6.4-41", "R-2-11")
@pytest.mark.parametrize("text", ["", "AAAA", "x" * 43 + "=", "é" * 43, "A" * 42 + "B", "A" * 44])
def test_a_badly_spelled_key_is_refused(text: str) -> None:
    refused(lambda: prove(replace(binding(AGENT), public_key=text)), "malformed-public-key")


@pytest.mark.req("R-6.4-14")
def test_only_ed25519_keys_are_bound() -> None:
    refused(lambda: prove(replace(binding(AGENT), algorithm="Ed448")), "unsupported-algorithm")


@pytest.mark.req("R-2-05", "R-6.4-35", "R-6.4-44")
@pytest.mark.parametrize(
    "time",
    ["2026-07-01T00:00:00-00:00", "2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "soon"],
)
def test_registry_times_obey_the_profile(time: str) -> None:
    refused(lambda: prove(replace(binding(AGENT), valid_from=time)), "malformed-time")
    for member in ("recorded_at", "valid_until", "revoked_at"):
        history = replace(record(1, valid_until=LATER, revoked_at=LATER), **{member: time})
        refused(lambda history=history: prove(binding(AGENT, history)), "malformed-time")


@pytest.mark.req("R-6.4-35", "R-2-07")
def test_any_offset_will_do_and_instants_are_compared() -> None:
    # Lexically larger, but earlier.
    shifted = prove(binding(AGENT, valid_from="2026-07-01T09:00:00+10:00"))
    assert shifted.valid_from < instants.parse("2026-07-01T00:00:00Z")
    assert shifted.document.valid_from == "2026-07-01T09:00:00+10:00"
    assert prove(binding(AGENT, valid_from="2026-07-01t00:00:00z")).valid_from == instants.parse(makers.VALID_FROM)


@pytest.mark.req("R-6.4-34")
def test_a_key_is_valid_from_its_start_until_its_earliest_end() -> None:
    proven = prove(
        binding(
            AGENT,
            record(1, revoked_at="2026-07-20T00:00:00Z"),
            record(2, revoked_at="2026-07-19T00:00:00Z", valid_until=LATER),
        )
    )
    assert proven.valid_at(instants.parse(makers.VALID_FROM))
    assert not proven.valid_at(instants.parse("2026-06-30T23:59:59.999999999Z"))
    assert proven.valid_at(instants.parse("2026-07-18T23:59:59.999999999Z"))
    assert not proven.valid_at(instants.parse("2026-07-19T00:00:00Z"))
    assert prove(binding(AGENT)).valid_at(instants.LATEST), "no end is open"


@pytest.mark.req("R-6.4-32", "R-6.4-33")
@pytest.mark.parametrize(
    "history, reason",
    [
        ((record(2),), "history-incomplete"),
        ((record(1), record(3)), "history-incomplete"),
        ((record(1), record(1)), "history-incomplete"),
        ((record(1, NOW), record(2, "2026-07-15T09:59:59Z")), "history-rewritten"),
        ((record(1, valid_until=NOW), record(2, valid_until=LATER)), "boundary-postponed"),
        ((record(1, revoked_at=NOW), record(2), record(3, revoked_at="2026-07-15T10:00:00.1Z")), "boundary-postponed"),
    ],
)
def test_a_history_that_was_tampered_with_is_refused(history: tuple[ValidityRecord, ...], reason: str) -> None:
    refused(lambda: prove(binding(AGENT, *history)), reason)
    refused(lambda: registry(HUMAN).bind(binding(AGENT, *history)), reason)


# --- many bindings ----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-6.4-17", "R-6.4-23")
def test_a_key_id_belongs_to_one_principal_and_one_key_for_ever() -> None:
    other_principal = replace(binding(AGENT), principal=HUMAN.principal)
    fresh = makers.make_key("fresh", "agent", 50)
    other_key = replace(binding(AGENT), public_key=fresh.public_key)
    for change in (other_principal, other_key):
        refused(lambda change=change: registry().bind(change), "key-id-rebound")
    revoked = registry().restrict(AGENT.key_id, NOW, revoked_at=NOW)
    refused(lambda: revoked.bind(other_key), "key-id-rebound")


@pytest.mark.req("R-6.4-19", "R-6.4-23")
def test_a_public_key_has_one_key_id_and_one_principal() -> None:
    alias = replace(binding(AGENT), key_id="urn:example:key:alias")
    stolen = replace(alias, principal=OTHER_AGENT.principal)
    for change in (alias, stolen):
        refused(lambda change=change: registry().bind(change), "public-key-reused")
        expired = registry().restrict(AGENT.key_id, NOW, valid_until=NOW)
        refused(lambda change=change, expired=expired: expired.bind(change), "public-key-reused")


@pytest.mark.req("R-6.4-19")
def test_restating_a_binding_is_no_alias() -> None:
    ended = registry().restrict(AGENT.key_id, NOW, valid_until=LATER)
    restated = ended.bind(binding(AGENT))
    assert restated is ended, "a later Card tells nothing new, and undoes nothing"
    assert restated.bind(binding(AGENT, valid_from="2026-07-01T02:00:00+02:00")) is ended


@pytest.mark.req("R-6.4-32")
def test_the_first_valid_from_stands() -> None:
    for moved in ("2026-06-01T00:00:00Z", "2026-07-02T00:00:00Z"):
        refused(lambda moved=moved: registry().bind(binding(AGENT, valid_from=moved)), "valid-from-changed")


@pytest.mark.req("R-6.4-32", "R-6.4-33")
def test_ends_may_be_added_and_brought_forward_only() -> None:
    first = registry()
    second = first.restrict(AGENT.key_id, NOW, valid_until="2026-09-01T00:00:00Z")
    third = second.restrict(AGENT.key_id, NOW, valid_until=LATER)
    fourth = third.restrict(AGENT.key_id, NOW, revoked_at=NOW)
    for attempt in ("2026-08-02T00:00:00Z", "2026-09-01T00:00:00Z"):
        refused(lambda attempt=attempt: fourth.restrict(AGENT.key_id, NOW, valid_until=attempt), "boundary-postponed")
    refused(lambda: fourth.restrict(AGENT.key_id, NOW), "nothing-restricted")
    refused(lambda: fourth.restrict("urn:example:key:unknown", NOW, valid_until=NOW), "unknown-key")
    refused(lambda: fourth.restrict(AGENT.key_id, "2026-07-15T09:00:00Z", revoked_at=NOW), "history-rewritten")
    history = fourth.export()["bindings"][0]["validityHistory"]
    assert [entry["sequence"] for entry in history] == [1, 2, 3], "every record stays readable"
    assert history[0]["validUntil"] == "2026-09-01T00:00:00Z"


@pytest.mark.req("R-6.4-24", "R-6.4-28")
def test_a_revision_never_changes_and_the_next_one_counts_up() -> None:
    first = registry()
    before = first.export()
    second = first.restrict(AGENT.key_id, NOW, revoked_at=NOW)
    assert second.revision == first.revision + 1
    assert first.export() == before
    assert isinstance(verify(raw(signed("command")), "command", second), Failure)
    assert not isinstance(verify(raw(signed("command")), "command", first), Failure)


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence() -> dict[str, Any]:
    return registry().restrict(AGENT.key_id, NOW, valid_until=LATER).export()


def test_export_and_import_are_inverse() -> None:
    found = Registry.from_evidence(evidence())
    assert found.export() == evidence()
    assert len(found) == len(ALL_KEYS)
    assert {entry.key_id for entry in found} == {key.key_id for key in ALL_KEYS}
    assert [entry.key_id for entry in found.keys_of(AGENT.principal)] == [AGENT.key_id]


def _drop(mapping: dict[str, Any], name: str) -> None:
    del mapping[name]


BREAK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unknown member": lambda it: it.update(extra=1),
    "no Organization": lambda it: _drop(it, "organizationId"),
    "relative Organization": lambda it: it.update(organizationId="/acme"),
    "no bindings": lambda it: it["bindings"].clear(),
    "a binding with a member more": lambda it: it["bindings"][3].update(extra=1),
    "a binding with a member less": lambda it: _drop(it["bindings"][3], "validFrom"),
    "a key ID with a line feed": lambda it: it["bindings"][3].update(keyId="urn:example:key:deputy\n"),
    "a Principal that is no URI": lambda it: it["bindings"][3]["principal"].update(id="urn:example:%zz"),
    "a Principal of no type": lambda it: it["bindings"][3]["principal"].update(type="system"),
    "a history with a hole": lambda it: it["bindings"][3]["validityHistory"].append({"sequence": 2, "recordedAt": NOW}),
    "a history with a bad time": lambda it: it["bindings"][3]["validityHistory"].append(
        {"sequence": 1, "recordedAt": "2016-12-31T23:59:60Z"}
    ),
    "a weak key": lambda it: it["bindings"][3].update(publicKey=ed25519.encode_base64url(ed25519.IDENTITY)),
    "an alias": lambda it: it["bindings"].append({**it["bindings"][3], "keyId": "urn:example:key:alias"}),
    "a rebound key ID": lambda it: it["bindings"].append(
        {**it["bindings"][3], "publicKey": makers.make_key("x", "human", 60).public_key}
    ),
    "a history told twice and differently": lambda it: it["bindings"].append(
        {**it["bindings"][0], "validityHistory": [{"sequence": 1, "recordedAt": NOW, "validUntil": NOW}]}
    ),
    "no object at all": lambda it: it.clear(),
}


@pytest.mark.req("R-6.4-24", "R-6.4-25", "R-6.4-26", "R-6.4-44")
@pytest.mark.parametrize("name", BREAK)
def test_one_bad_entry_and_there_is_no_registry(name: str) -> None:
    broken = evidence()
    BREAK[name](broken)
    with pytest.raises(RegistryFault):
        Registry.from_evidence(broken)


@pytest.mark.req("R-6.4-19", "R-6.4-23")
def test_declarations_of_one_key_are_merged() -> None:
    parts = evidence()
    twice = copy.deepcopy(parts["bindings"][0])
    twice["validityHistory"].append({"sequence": 2, "recordedAt": NOW, "revokedAt": NOW})
    parts["bindings"].insert(0, twice)
    parts["bindings"].append(copy.deepcopy(parts["bindings"][4]))
    merged = Registry.from_evidence(parts)
    found = merged.resolve(AGENT.key_id)
    assert found is not None
    assert found.revoked_at == instants.parse(NOW)
    assert found.valid_until == instants.parse(LATER)
    assert len(merged) == len(ALL_KEYS)


def report(**changes: Any) -> RegistryReport:
    good = dict.fromkeys(("scope", "coherent", "current", "complete", "historical"), "yes")
    found = {"evidence": evidence(), "organization_id": ORGANIZATION, "revision": 5, **good}
    return RegistryReport(**{**found, **changes})


@pytest.mark.req("R-6.4-26", "R-6.4-27", "R-6.4-30")
@pytest.mark.parametrize("name", ["scope", "coherent", "current", "complete", "historical"])
def test_what_an_adapter_cannot_establish_is_not_believed(name: str) -> None:
    assert isinstance(establish(report(), organization_id=ORGANIZATION, newest_revision=5), Registry)
    for answer in ("no", "unknown"):
        found = establish(report(**{name: answer}), organization_id=ORGANIZATION, newest_revision=5)
        assert isinstance(found, NoRegistry)
        # Even for a key that the incomplete evidence lacks, the reason is the evidence and not the key.
        outcome = verify(raw(signed("command")), "command", found)
        assert isinstance(outcome, Failure)
        assert (outcome.stage, outcome.reason) == ("key-resolution", f"registry-{name}-not-established")


@pytest.mark.req("R-6.4-27")
def test_an_adapter_that_says_nothing_establishes_nothing() -> None:
    silent = RegistryReport(evidence=evidence(), organization_id=ORGANIZATION, revision=5)
    assert isinstance(establish(silent, organization_id=ORGANIZATION, newest_revision=0), NoRegistry)


@pytest.mark.req("R-6.4-24", "R-6.4-28", "R-6.4-29", "R-6.4-31")
def test_other_organizations_superseded_and_unavailable_evidence_are_refused() -> None:
    def reason(found: Registry | NoRegistry) -> str:
        assert isinstance(found, NoRegistry)
        return found.reason

    other = "urn:example:organization:other"
    assert reason(establish(report(), organization_id=other, newest_revision=0)) == "registry-scope-not-established"
    mixed = report(evidence={**evidence(), "organizationId": other})
    assert reason(establish(mixed, organization_id=ORGANIZATION, newest_revision=0)) == "registry-scope-not-established"
    assert reason(establish(report(), organization_id=ORGANIZATION, newest_revision=6)) == "registry-superseded"
    gone = report(available=False)
    assert reason(establish(gone, organization_id=ORGANIZATION, newest_revision=0)) == "registry-unavailable"
    broken = report(evidence={**evidence(), "bindings": []})
    assert reason(establish(broken, organization_id=ORGANIZATION, newest_revision=0)) == "malformed-evidence"


@pytest.mark.req("R-6.4-70")
def test_history_cut_off_before_the_signed_time_is_no_evidence() -> None:
    cut = evidence()
    cut["bindings"][0]["validityHistory"] = [{"sequence": 2, "recordedAt": NOW, "validUntil": LATER}]
    found = establish(report(evidence=cut), organization_id=ORGANIZATION, newest_revision=5)
    outcome = verify(raw(signed("command")), "command", found)
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.reason) == ("key-resolution", "history-incomplete")


@pytest.mark.req("R-6.4-17", "R-6.4-19", "R-6.4-33")
@pytest.mark.parametrize("seed", range(5))
def test_no_history_of_changes_breaks_uniqueness_or_revives_a_key(seed: int) -> None:
    rng = random.Random(seed)
    pool = [makers.make_key(f"key-{number}", "agent", 100 + number) for number in range(6)]
    owners: dict[str, tuple[str, str]] = {}
    ids: dict[str, str] = {}
    dead: set[str] = set()
    current = Registry(ORGANIZATION)
    for step in range(120):
        key, other = rng.choice(pool), rng.choice(pool)
        document: KeyBinding = replace(binding(key), public_key=other.public_key, principal=rng.choice(pool).principal)
        try:
            if rng.random() < 0.6:
                current = current.bind(document if rng.random() < 0.7 else binding(key))
            else:
                end = f"2026-07-{rng.randint(2, 28):02}T00:00:00Z"
                current = current.restrict(key.key_id, f"2026-08-01T00:{step // 60:02}:{step % 60:02}Z", revoked_at=end)
                dead.add(key.key_id)
        except RegistryFault:
            pass
        for entry in current:
            tuple_ = (entry.document.public_key, entry.principal.id)
            assert owners.setdefault(entry.key_id, tuple_) == tuple_, f"seed {seed}"
            assert ids.setdefault(entry.document.public_key, entry.key_id) == entry.key_id, f"seed {seed}"
            assert (entry.revoked_at is not None) == (entry.key_id in dead), f"seed {seed}"
    assert Registry.from_evidence(current.export()).export() == current.export()


def test_resolution_costs_the_same_with_many_keys() -> None:
    many = Registry(ORGANIZATION)
    for number in range(200):
        seed = number.to_bytes(32, "big")
        key = keys.generate(f"urn:example:key:{number}", AGENT.principal, ORGANIZATION, seed)
        many = many.bind(binding(key))
    assert len(many) == 200
    assert many.resolve("urn:example:key:199") is not None
    assert many.resolve("urn:example:key:200") is None
