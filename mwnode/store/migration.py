"""From older formats to this one: a step for each version, all of them in the transaction that opens the file.

Before the first step the whole file is copied beside itself, so that an older mwnode can go back to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb

from mwnode.store.errors import StoreFull
from mwnode.store.layout import FORMAT

STEPS: Final[dict[int, Callable[[lmdb.Environment, Any], None]]] = {}
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
