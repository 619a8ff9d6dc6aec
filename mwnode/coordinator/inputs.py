"""The files that a plan names as inputs: found beside it, listed under the paths that executors see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mwnode.coordinator.plan import Plan, PlanError
from mwnode.coordinator.plan_format import FROM_PARENT, PlanWork, is_content_hash

FILES_MAX = 2000
"""Most input files of one WorkItem: its contract lists each of them."""


def input_files(plan: Plan, work: PlanWork) -> dict[str, Path | str]:
    """Path under `inputs/` of everything that a work wants: a file on disk, or the content hash of an Artifact.

    A folder stands for all files below it. Names that start with a dot, and `__pycache__`, are left out. Leading `..`
    of a path are dropped: `../project/` is seen as `project/`. Raises PlanError.
    """
    found: dict[str, Path | str] = {}
    for index, name in enumerate(work.inputs):
        if name.startswith(FROM_PARENT):
            continue  # no file of this plan: its Mission's owner hands it in
        if is_content_hash(name):
            found[name.removeprefix("sha256:")] = name
            continue
        root = plan.source.parent / name
        seen = [part for part in Path(name).parts if part not in ("..", ".")]
        for path in _files(root):
            shown = "/".join((*seen, *path.relative_to(root).parts)) if root.is_dir() else "/".join(seen)
            found[shown] = path
        if len(found) > FILES_MAX:
            where = ("work", plan.work.index(work), "inputs", index)
            raise PlanError(plan.source, f"more than {FILES_MAX} files: pack them into an archive", where)
    return found


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path
