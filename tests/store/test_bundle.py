"""Groups carried from node to node: proven from the root key, all or nothing, never over anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mwnode.authority.state import AGENTS, CONTENTS, KEYS, WORK_ITEMS, KeyRow
from mwnode.genesis import service_command
from mwnode.protocol import jcs
from mwnode.protocol.commands import CORE, Binding
from mwnode.store import bundle
from mwnode.store.bundle import BundleFault, Carried, bring_in, read_header
from mwnode.store.carry import TargetExists
from mwnode.store.environment import LmdbStore
from mwnode.store.errors import StoreCorrupt, StoreError
from mwnode.store.keychain import root_of
from mwnode.store.layout import U32
from mwnode.store.transfer import Conflict
from mwnode.store.trim import trim_group
from mwnode.store.verify import verify
from mwnode.testing import Harness, MissionHandle
from mwnode.trust.keys import sign_mapping
from tests.store.archives import approved, archived, say
from tests.store.damage import change, flip, log_key


def silent(what: str, done: int, total: int) -> None:
    """A progress that nobody looks at."""


def carried_out(harness: Harness, target: Path, *missions: MissionHandle) -> Carried:
    """Export from a closed node."""
    harness.node.close()
    home = harness.node.home
    try:
        return bundle.export(
            home.store_path,
            target,
            groups=[mission.group_id for mission in missions] or None,
            registry_service=home.registry_service,
            authority_key=home.key("authority"),
            created_at=harness.clock.now().text(),
            progress=silent,
        )
    finally:
        harness.restart()


def root(harness: Harness) -> Binding:
    with harness.node.read() as view:
        return root_of(view, harness.node.home.registry_service)  # type: ignore[arg-type]


def read_back(path: Path, *group_ids: str) -> dict[str, list[bytes]]:
    store = LmdbStore.open(path, read_only=True)
    try:
        with store.read() as view:
            return {group_id: [each.event for each in view.events(group_id, 0, 10_000)] for group_id in group_ids}
    finally:
        store.close()


def test_groups_are_carried_to_a_place_that_knows_only_the_root_key(mwnode: Harness, tmp_path: Path) -> None:
    done, live = archived(mwnode, content=b"x" * 300_000), mwnode.mission()
    making = live.work("active")
    source = making.publish(b"source")
    making.publish(b"made", sourceArtifactHashes=[source])
    work = live.authorize()
    work.offer()
    human = mwnode.human("second")
    restriction = {"keyId": human.key.key_id, "revokedAt": mwnode.clock.now().text()}
    mwnode.node.send(
        service_command(mwnode.organization.key, f"{CORE}.key_restrict", restriction, mwnode.clock, mwnode.entropy)
    )
    made = carried_out(mwnode, tmp_path / "out.bundle")
    assert set(made.groups) == {done.group_id, live.group_id}
    assert made.related == ()
    target = tmp_path / "elsewhere" / "node.mdb"
    target.parent.mkdir()
    brought = bring_in(tmp_path / "out.bundle", target, root=root(mwnode), progress=silent)
    assert (brought.groups, brought.artifacts) == (made.groups, 3)
    report = verify(target)
    assert report.ok, report.findings
    assert (report.groups, report.artifacts) == (2, 3)
    expected = {mission.group_id: [jcs.canonical(event) for event in mission.events()] for mission in (done, live)}
    assert read_back(target, done.group_id, live.group_id) == expected
    store = LmdbStore.open(target, read_only=True)
    with store.read() as view, mwnode.node.read() as here:
        assert view.all(KEYS) == here.all(KEYS)
        assert view.get(WORK_ITEMS, work.work_item_id) == here.get(WORK_ITEMS, work.work_item_id)
        names = view.derivations(source, live.group_id, None, 9)
        assert names == here.derivations(source, live.group_id, None, 9)
        assert len(names) == 1
        assert view.policy_log(done.group_id) == here.policy_log(done.group_id)
        with_snapshot = [event for event in done.events() if event["kind"] == "group.snapshot.created"]
        assert view.document(with_snapshot[0]["payload"]["stateHash"]) is not None
    store.close()
    assert sorted(each.name for each in target.parent.iterdir() if not each.name.endswith(("-lock", ".owner"))) == [
        "node.mdb"
    ]


def test_one_group_goes_without_the_others_but_with_its_family(mwnode: Harness, tmp_path: Path) -> None:
    first, other = mwnode.mission(), approved(mwnode)
    made = carried_out(mwnode, tmp_path / "one.bundle", first)
    assert made.groups == (first.group_id,)
    target = tmp_path / "one.mdb"
    bring_in(tmp_path / "one.bundle", target, root=root(mwnode), progress=silent)
    assert verify(target).ok
    secret = other.events()[3]["eventId"].encode()
    assert secret not in target.read_bytes()
    # Another bundle of the same Organization joins it; Artifacts and keys that are here already are no conflict.
    carried_out(mwnode, tmp_path / "two.bundle", other)
    bring_in(tmp_path / "two.bundle", target, root=None, progress=silent)
    report = verify(target)
    assert report.ok, report.findings
    assert report.groups == 2


def test_trimmed_and_erased_groups_are_carried_as_they_are(mwnode: Harness, tmp_path: Path) -> None:
    mission = approved(mwnode)
    said = say(mission, "to forget")
    mwnode.organization.send(
        f"{CORE}.event_tombstone",
        {"eventId": said["eventId"], "policyReason": "law"},
        group_id=mission.group_id,
        expected_revision=mission.revision,
    )
    erased, trimmed = mission, archived(mwnode)
    trim_group(lambda step: mwnode.node.call(step).result(), trimmed.group_id)  # type: ignore[arg-type]
    carried_out(mwnode, tmp_path / "out.bundle")
    target = tmp_path / "node.mdb"
    bring_in(tmp_path / "out.bundle", target, root=root(mwnode), progress=silent)
    report = verify(target)
    assert report.ok, report.findings
    expected = {each.group_id: [jcs.canonical(event) for event in each.events()] for each in (erased, trimmed)}
    assert read_back(target, *expected) == expected
    assert b"to forget" not in (tmp_path / "out.bundle").read_bytes()
    # Who may read the bytes of a trimmed Group, and who its Agents are, arrives as well.
    made = LmdbStore.open(target, read_only=True)
    try:
        with made.read() as there, mwnode.node.read() as here:
            for row in here.all(CONTENTS):
                arrived = there.get(CONTENTS, row.content_hash)
                assert arrived is not None
                assert set(arrived.artifact_ids) == set(row.artifact_ids)
                assert set(arrived.group_ids) == set(row.group_ids)
            assert there.all(AGENTS) == here.all(AGENTS)
    finally:
        made.close()


def test_an_import_never_overwrites_and_is_refused_while_the_file_is_in_use(mwnode: Harness, tmp_path: Path) -> None:
    mission = mwnode.mission()
    carried_out(mwnode, tmp_path / "out.bundle")
    path = mwnode.node.home.store_path
    with pytest.raises(StoreError, match=r"already open|in use"):
        bring_in(tmp_path / "out.bundle", path, root=None, progress=silent)
    mwnode.node.close()
    before = path.read_bytes()
    with pytest.raises(Conflict, match="is here already"):
        bring_in(tmp_path / "out.bundle", path, root=None, progress=silent)
    assert path.read_bytes() == before
    mwnode.restart()
    assert mission.authorize().state
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    with pytest.raises(TargetExists):
        carried_out(mwnode, precious)
    assert precious.read_bytes() == b"precious"


def test_a_bundle_of_another_organization_is_refused(mwnode: Harness, tmp_path: Path) -> None:
    mwnode.mission()
    carried_out(mwnode, tmp_path / "out.bundle")
    other = Harness(tmp_path / "other", seed=9)
    theirs = root(other)
    other.close()
    with pytest.raises(Conflict, match="belongs to Organization"):
        bring_in(tmp_path / "out.bundle", other.node.home.store_path, root=None, progress=silent)
    with pytest.raises(BundleFault, match="not the root key"):
        bring_in(tmp_path / "out.bundle", tmp_path / "new.mdb", root=theirs, progress=silent)
    with pytest.raises(BundleFault, match="--root"):
        bring_in(tmp_path / "out.bundle", tmp_path / "new.mdb", root=None, progress=silent)
    assert not (tmp_path / "new.mdb").exists()


def test_a_changed_bundle_is_refused_wherever_it_was_changed(mwnode: Harness, tmp_path: Path) -> None:
    mwnode.mission()
    carried_out(mwnode, tmp_path / "out.bundle")
    raw, known = (tmp_path / "out.bundle").read_bytes(), root(mwnode)
    bad = tmp_path / "bad.bundle"
    size = int(U32.unpack(raw[len(bundle.MAGIC) :][:4])[0])
    start = len(bundle.MAGIC) + 4
    for place in (0, len(bundle.MAGIC) + 2, start + 30, start + size - 30, start + size + 5000, len(raw) - 10):
        changed = bytearray(raw)
        changed[place] ^= 1
        bad.write_bytes(changed)
        with pytest.raises(BundleFault):
            bring_in(bad, tmp_path / "new.mdb", root=known, progress=silent)
    for short in (raw[:-1], raw[: start + 10], b""):
        bad.write_bytes(short)
        with pytest.raises(BundleFault):
            bring_in(bad, tmp_path / "new.mdb", root=known, progress=silent)
    newer = raw[start : start + size].replace(b'"format":1', b'"format":9')
    bad.write_bytes(bundle.MAGIC + U32.pack(len(newer)) + newer + raw[start + size :])
    with pytest.raises(BundleFault, match="newer mwnode"):
        read_header(bad)
    deep = b'{"format":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bad.write_bytes(bundle.MAGIC + U32.pack(len(deep)) + deep)
    with pytest.raises(BundleFault, match="cannot be read"):
        read_header(bad)
    assert not (tmp_path / "new.mdb").exists()


def forge(harness: Harness, tmp_path: Path, edit: Any, **header: Any) -> Path:
    """A bundle whose store was changed, with a header that fits it, signed by whoever."""
    raw = (tmp_path / "out.bundle").read_bytes()
    start = len(bundle.MAGIC) + 4
    size = int(U32.unpack(raw[len(bundle.MAGIC) : start])[0])
    content = tmp_path / "forged.mdb"
    content.write_bytes(raw[start + size :])
    store = LmdbStore.open(content)
    edit(store)
    store.close()
    fields = {
        name: value for name, value in msgspec.json.decode(raw[start : start + size]).items() if name != "signature"
    }
    fields |= {"bytes": content.stat().st_size, "digest": bundle._digest(content), **header}
    signer = fields.pop("signer", harness.node.authority_key)
    target = tmp_path / "forged.bundle"
    target.unlink(missing_ok=True)
    bundle._assemble(target, jcs.canonical(sign_mapping(fields, signer, fields["createdAt"])), content)
    content.unlink()
    return target


def test_nothing_enters_that_does_not_go_back_to_the_root_key(mwnode: Harness, tmp_path: Path) -> None:
    mission = mwnode.mission()
    carried_out(mwnode, tmp_path / "out.bundle")
    known = root(mwnode)
    owner = mwnode.owner.key
    own = Binding(
        key_id="urn:example:key:intruder",
        principal=mwnode.node.home.registry_service,
        algorithm="Ed25519",
        public_key=owner.public_key,
        valid_from=known.valid_from,
    )

    def intrude(store: LmdbStore) -> None:
        store.write(lambda txn: txn.put(KEYS, KeyRow(own, 1)))

    def damage(store: LmdbStore) -> None:
        change(store, "log", log_key(store, mission.group_id, 1), flip(-20))

    def nothing(store: LmdbStore) -> None:
        """Only the header is forged."""

    cases: dict[str, tuple[Any, dict[str, Any], str]] = {
        "a key that nobody bound": (intrude, {}, "does not go back to the root key"),
        "a damaged Event": (damage, {}, "does not verify"),
        "signed by a person": (nothing, {"signer": owner}, "not signed by"),
        "signed by the root": (nothing, {"signer": mwnode.organization.key}, "not signed by"),
        "another Group named": (nothing, {"groups": ["urn:example:other"]}, "other Groups"),
        "another Organization named": (nothing, {"organizationId": "urn:example:other"}, "not of the Organization"),
    }
    for name, (edit, header, text) in cases.items():
        forged = forge(mwnode, tmp_path, edit, **header)
        with pytest.raises(BundleFault, match=text):
            bring_in(forged, tmp_path / "new.mdb", root=known, progress=silent)
        assert not (tmp_path / "new.mdb").exists(), name
    bring_in(forge(mwnode, tmp_path, nothing), tmp_path / "new.mdb", root=known, progress=silent)


def test_a_damaged_store_is_not_exported(mwnode: Harness, tmp_path: Path) -> None:
    mission = mwnode.mission()
    change(mwnode.node.store, "log", log_key(mwnode.node.store, mission.group_id, 1), flip(-20))
    with pytest.raises(StoreCorrupt, match="mwnode verify"):
        carried_out(mwnode, tmp_path / "out.bundle")
    assert not (tmp_path / "out.bundle").exists()
    assert not list(tmp_path.glob(".mwnode-*"))


def test_a_group_that_is_not_there_is_named(mwnode: Harness, tmp_path: Path) -> None:
    other = Harness(tmp_path / "other", seed=3)
    mission = other.mission()
    other.close()
    with pytest.raises(KeyError):
        carried_out(mwnode, tmp_path / "out.bundle", mission)
