"""`mwnode doctor`: what is odd about HOME and its file, and what to do about it."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from mwnode.certificates import ends_at
from mwnode.cli.compose import now
from mwnode.cli.exits import REFUSED
from mwnode.cli.failure import Failure
from mwnode.cli.keyless import is_keyless
from mwnode.cli.output import emit, facts, table
from mwnode.cli.progress import progress
from mwnode.cli.target import Target, at_home
from mwnode.home import Home
from mwnode.store.audit import opened
from mwnode.store.doctor import EXPIRY_SECONDS, Observation, examine
from mwnode.store.environment import LmdbStore
from mwnode.store.fold import rebuild as rebuild_rows
from mwnode.trust.boxes import BoxFault

PAGE = 1000


@click.command()
@click.option("--audit", is_flag=True, help="Print the protected diagnostics; needs the audit key.")
@click.option("--rebuild", is_flag=True, help="Replay the log into fresh rows; refused while a node serves HOME.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --audit: the audit key's file; default: keys/audit.key of HOME.",
)
@at_home
def doctor(target: Target, audit: bool, rebuild: bool) -> None:
    """Look at HOME and its file: locks, readers, space, clock, keys, versions; each finding says what to do.

    Exit 1 when something is wrong. `mwnode verify` proves what is in the file; this looks at what is around it.
    """
    if audit and rebuild:
        raise click.UsageError("give --audit or --rebuild, not both")
    if audit:
        _audit(target)
    elif rebuild:
        _rebuild(target)
    else:
        _examine(target)


def _examine(target: Target) -> None:
    home = target.home
    found = [*examine(home.store_path, now(), home.limits), *_home(home)]
    ok = all(observation.level != "fault" for observation in found)
    lines = [
        f"{observation.level:<8} {observation.check}: {observation.detail}"
        + (f"\n         -> {observation.advice}" if observation.advice else "")
        for observation in found
    ]
    emit(target.as_json, {"ok": ok, "findings": found}, lines)
    if not ok:
        sys.exit(REFUSED)


def _home(home: Home) -> Iterator[Observation]:
    """What is beside the file: key files and certificates."""
    for path in sorted((home.path / "keys").glob("*.key")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield Observation(
                "key files", "fault", f"{path} can be read by others (mode {mode:o})", f"chmod 600 {path}"
            )
    if not any((home.path / "keys").glob("*.key")) and not (home.path / "tls").exists():
        yield Observation(
            "key files", "ok", "no key is here: HOME is for reading and proving, as `mwnode import` makes it"
        )
        return
    if is_keyless(home):
        yield Observation(
            "key files", "fault", "keys/authority.key is gone: no node can sign Events", "restore it from a backup"
        )
    if not home.key_path("organization").exists():
        yield Observation("key files", "ok", "the Organization's key is kept elsewhere: give it by --key where needed")
    served = home.settings.server.certificate
    for path in (home.ca_path, home.path / (served or "tls/server.pem")):
        if not path.exists():
            yield Observation("certificates", "warning", f"{path} is gone", "restore it from a backup")
            continue
        end = ends_at(path.read_bytes())
        if end <= now().plus(EXPIRY_SECONDS):
            past = end <= now()
            yield Observation(
                "certificates",
                "fault" if past else "warning",
                f"{path} {'ended' if past else 'ends'} at {end.text()}",
                "put another in its place and restart the node",
            )


def _audit(target: Target) -> None:
    key = target.key("audit")
    rows: list[dict[str, Any]] = []
    store = LmdbStore.open(target.home.store_path, read_only=True)
    try:
        after = 0
        with store.read() as view:
            while page := view.audit(after, PAGE):
                rows += [{"number": number, **msgspec.to_builtins(opened(row, key))} for number, row in page]
                after = page[-1][0]
    except BoxFault as error:
        raise Failure(f"{error}: give the audit key that was in HOME then by --key FILE") from error
    finally:
        store.close()
    heads = ["number", "at", "stage", "reason", "document", "key", "actor"]
    names = ["number", "at", "stage", "reason", "document_kind", "key_id", "actor"]
    emit(target.as_json, {"audit": rows}, table(heads, [[row.get(name) for name in names] for row in rows]))


def _rebuild(target: Target) -> None:
    store = LmdbStore.open(target.home.store_path, create=False)
    try:
        with progress() as show:
            rows = rebuild_rows(store, show)
    finally:
        store.close()
    document = {"rows": rows}
    emit(target.as_json, document, facts(document))
