"""`mwnode verify`, `backup` and `compact`: the file itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mwnode.cli.exits import REFUSED
from mwnode.cli.failure import Failure
from mwnode.cli.output import emit, facts
from mwnode.cli.progress import progress
from mwnode.cli.target import NEW_FILE, Target, at_home
from mwnode.home import Home
from mwnode.store import carry
from mwnode.store.apart import verify_apart
from mwnode.store.artifacts import Artifacts, DirectWriter
from mwnode.store.bundle import is_bundle
from mwnode.store.collecting import Collected, Collector
from mwnode.store.environment import LmdbStore
from mwnode.store.proving import cores
from mwnode.store.trim import Trimmed, check_trimmable, find_group, trim_group
from mwnode.system import SystemClock


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--jobs", type=click.IntRange(1, 256), metavar="N", help="Processes to use; all cores unless given.")
@click.option(
    "--resume",
    type=NEW_FILE,
    metavar="STATE",
    help="Keep in this file how far the check came, and go on from there after an interruption.",
)
@at_home
def verify(target: Target, file: Path | None, jobs: int | None, resume: Path | None) -> None:
    """Prove HOME's file again: every signature, hash, sequence, chain value, index, Artifact and row.

    FILE in place of HOME's is proven for itself: a backup, or a node.mdb of any other place. Exit 1 when anything is
    not as it must be; each finding names its place. The file may be in use by its node.

    With --resume a check that was interrupted spares itself the signatures and Artifacts that it has proven and that
    are unchanged; all else is looked at again. The state is deleted when the check has come to its end.
    """
    if file is not None and is_bundle(file):
        raise Failure(
            f"{file} is an export, which is proven as it is imported: `mwnode import {file} --home OTHER --root KEY`"
        )
    organization_id = None if file is not None else target.home.organization_id
    with progress() as show:
        report = verify_apart(
            file if file is not None else target.home.store_path,
            progress=show,
            organization_id=organization_id,
            jobs=jobs or cores(),
            resume=None if resume is None else resume.absolute(),
        )
    lines = [f"{finding.kind}: {finding.where}: {finding.detail}" for finding in report.findings]
    lines += [f"warning: {warning.detail}" for warning in report.warnings]
    counted = f"{report.groups} Groups, {report.events} Events, {report.artifacts} Artifacts"
    emit(target.as_json, report, [*lines, f"{'all good' if report.ok else f'{len(lines)} findings'}: {counted}"])
    if not report.ok:
        sys.exit(REFUSED)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--compact", is_flag=True, help="Leave free pages out.")
@at_home
def backup(target: Target, file: Path, compact: bool) -> None:
    """Copy HOME's file to FILE, as of one moment, also while a node serves it.

    The copy is a store of its own: put it in the place of node.mdb to restore it. Keys are not in it; copy keys/ too.
    """
    made = carry.backup(target.home.store_path, file.absolute(), compact=compact)
    document = {"file": str(made.path), "bytes": made.bytes, "groups": made.groups, "events": made.events}
    emit(target.as_json, document, facts(document))


@click.command()
@click.option(
    "--trim-archived",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Remove the Events of this archived Group first; its signed snapshot stays. May be given more than once.",
)
@at_home
def compact(target: Target, groups: tuple[str, ...]) -> None:
    """Rewrite HOME's file without its free pages; refused while a node serves it.

    Uploads that nothing names go too, when they are older than [policy] upload_retention. Trimmed Events are gone from
    this file: export the Group or make a backup first. Whoever asks for them is answered CURSOR_TOO_OLD with the
    snapshot's hash. GROUP may be an unmistakable part of the Group's or Mission's identifier.
    """
    trimmed, collected = _tidy(target.home, groups)
    before, after = carry.compact(target.home.store_path)
    document: dict[str, Any] = {"bytesBefore": before, "bytesAfter": after, "uploadsRemoved": collected.artifacts}
    if groups:
        document["trimmed"] = [
            {
                "groupId": done.group_id,
                "throughSequence": done.through_sequence,
                "events": done.events,
                "snapshotArtifactHash": done.snapshot_artifact_hash,
            }
            for done in trimmed
        ]
    shown = {name: value for name, value in document.items() if name != "trimmed"}
    lines = [f"{done.group_id}: {done.events} Events trimmed, through {done.through_sequence}" for done in trimmed]
    emit(target.as_json, document, [*lines, *facts(shown)])


def _tidy(home: Home, named: tuple[str, ...]) -> tuple[list[Trimmed], Collected]:
    """Trim Groups of a store that nobody has open, all or none of them, then let old uploads go."""
    store = LmdbStore.open(home.store_path, create=False)
    try:
        with store.read() as view:
            group_ids = [find_group(view, name) for name in named]
            for group_id in group_ids:
                check_trimmable(view, group_id)
        trimmed = [trim_group(store.write, group_id) for group_id in dict.fromkeys(group_ids)]
        retention, clock = home.policy.upload_retention, SystemClock()
        if not retention:
            return trimmed, Collected()
        artifacts = Artifacts(store, DirectWriter(store, clock), home.limits)
        return trimmed, Collector(store, artifacts, store.write).collect(clock.now().plus(-retention))
    finally:
        store.close()
