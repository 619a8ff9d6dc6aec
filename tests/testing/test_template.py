"""A test begins with a copy of a HOME that was founded once: it must be what founding it anew would have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mwnode.testing import Harness, ManualClock
from mwnode.testing.template import files_of


def bindings(harness: Harness) -> list[dict[str, Any]]:
    return sorted(harness.node.registry.export()["bindings"], key=lambda binding: str(binding["keyId"]))


def test_a_copy_is_what_founding_makes(tmp_path: Path) -> None:
    copied = Harness(tmp_path / "copied", seed=3)
    founded = Harness(tmp_path / "founded", seed=3, clock=ManualClock())
    try:
        assert {name: mode for name, (mode, _) in files_of(copied.home).items()} == {
            name: mode for name, (mode, _) in files_of(founded.home).items()
        }
        assert copied.node.organization_id == founded.node.organization_id
        assert bindings(copied) == bindings(founded)
        for left, right in ((copied.owner, founded.owner), *zip(copied.workers, founded.workers, strict=True)):
            assert (left.key.key_id, left.session_epoch) == (right.key.key_id, right.session_epoch)
        # What is drawn from then on is the same too, down to the bytes of the log.
        assert copied.mission("approved").events() == founded.mission("approved").events()
    finally:
        copied.close()
        founded.close()


def test_copies_share_nothing(tmp_path: Path) -> None:
    first, second = Harness(tmp_path / "first"), Harness(tmp_path / "second")
    try:
        mission = first.mission()
        with second.node.read() as view:
            assert view.head(mission.group_id) == 0
    finally:
        first.close()
        second.close()


def test_secrets_are_readable_by_their_user_alone(mwnode: Harness) -> None:
    modes = {name: mode for name, (mode, _) in files_of(mwnode.home).items()}
    assert {modes[name] for name in modes if name.endswith(".key") or name == "node.mdb"} == {0o600}
