"""From older formats to this one: a step for each version, all of them in the transaction that opens the file.

Before the first step the whole file is copied beside itself, so that an older mwnode can go back to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb

from mwnode.authority.state import ARTIFACTS
from mwnode.store.errors import StoreCorrupt, StoreFull
from mwnode.store.layout import FORMAT, derivation_key, text_key
from mwnode.store.projections import decode_row


def _index_derivations(env: lmdb.Environment, txn: Any) -> None:
    """Format 2 finds what was made of an Artifact without reading all manifests."""
    entities, groups, made = (env.open_db(name, txn=txn) for name in (b"entities", b"groups", b"derivations"))
    code = bytes((ARTIFACTS.code,))
    with txn.cursor(entities) as cursor:
        found = cursor.set_range(code)
        while found and cursor.key().startswith(code):
            row = decode_row(ARTIFACTS, cursor.value(), cursor.key().hex())
            artifact_id, group_id = row.artifact.artifact_id, row.artifact.group_id
            group = txn.get(text_key(group_id), db=groups)
            if group is None:
                raise StoreCorrupt(f"{group_id} has no number: restore a backup", f"group {group_id}")
            for content_hash in row.artifact.source_artifact_hashes:
                txn.put(derivation_key(content_hash, group, artifact_id), artifact_id.encode(), db=made)
            found = cursor.next()


STEPS: Final[dict[int, Callable[[lmdb.Environment, Any], None]]] = {1: _index_derivations}
"""What makes a file of one format a file of the next; format 1 is the first."""

if set(STEPS) != set(range(1, FORMAT)):
    raise RuntimeError("every older format needs its step")


def migrate(env: lmdb.Environment, txn: Any, known: int) -> None:
    """Bring a file of format ``known`` to the present one, inside ``txn``."""
    for version in range(known, FORMAT):
        STEPS[version](env, txn)


def keep_copy(env: lmdb.Environment, path: Path, known: int) -> Path:
    """Copy the file as it is to ``<file>.format-N`` before anything is changed; StoreFull without room for it."""
    target = path.with_name(f"{path.name}.format-{known}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.format-{known}.{number}")
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            env.copyfd(file)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(part, target)
    except (lmdb.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise StoreFull(
            f"{path} has format {known} and is copied before it is migrated: no room for {target}"
        ) from error
    return target
