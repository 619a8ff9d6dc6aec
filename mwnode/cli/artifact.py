"""`mwnode artifact`: bytes addressed by their SHA-256."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from mwnode.cli.failure import Failure
from mwnode.cli.missions import events_of, file_names, find_mission, missions
from mwnode.cli.naming import Candidate, pick
from mwnode.cli.output import emit, facts, table
from mwnode.cli.reach import Reach, reach
from mwnode.cli.target import NEW_FILE, Target, at_node
from mwnode.cli.uploads import NEXT, uploads
from mwnode.client.derivations import Direction
from mwnode.narrative import Narrator, moment, short, short_id
from mwnode.protocol.errors import GroupNotFound

HEX_DIGITS = 64


@click.group()
def artifact() -> None:
    """Put, get and list Artifacts, and follow what was made of what."""


@artifact.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@at_node
def put(target: Target, file: Path) -> None:
    """Store a file's bytes; the same bytes again cost nothing."""
    with reach(target, target.key("owner")) as node:
        stored = node.put_artifact(file)
    emit(target.as_json, stored, [*facts(stored), NEXT])


artifact.add_command(uploads)


@artifact.command()
@click.argument("content_hash", metavar="HASH")
@click.option("--output", "-o", type=NEW_FILE, metavar="FILE", help="Default: standard output.")
@at_node
def get(target: Target, content_hash: str, output: Path | None) -> None:
    """Fetch an Artifact's bytes, checked against their hash before the file appears.

    The beginning of HASH is enough for what was published in a Mission of yours.
    """
    with TemporaryDirectory() as directory, reach(target, target.key("owner")) as node:
        full = _full_hash(node, content_hash)
        # To standard output nothing may go that a later block proves wrong: the whole is checked first.
        path = output or Path(directory) / "artifact"
        with _here(full):
            node.get_artifact(full, path)
        size = path.stat().st_size
        if output is None and not target.as_json:
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
            return
    document = {"contentHash": full, "sizeBytes": size, "file": str(output) if output else None}
    emit(target.as_json, document, facts(document))


@artifact.command("list")
@click.argument("mission", metavar="[MISSION]", required=False)
@at_node
def list_(target: Target, mission: str | None) -> None:
    """List the Artifacts published in one Mission, or in all of yours."""
    with reach(target, target.key("owner")) as node:
        groups = (
            [find_mission(node, mission)["mission"]["groupId"]]
            if mission
            else [listed["groupId"] for listed in missions(node)]
        )
        rows = [row for group_id in groups for row in _published(node, group_id)]
    heads = ["contentHash", "sizeBytes", "mediaType", "work", "file", "producer"]
    cells = [
        [
            row["contentHash"],
            row["sizeBytes"],
            row["mediaType"],
            row["work"],
            file_names(row),
            short(row["producer"]["agentId"]),
        ]
        for row in rows
    ]
    documents = [{name: value for name, value in row.items() if name != "work"} for row in rows]
    emit(target.as_json, {"artifacts": documents}, table(heads, cells))


@artifact.command()
@click.argument("content_hash", metavar="HASH")
@at_node
def show(target: Target, content_hash: str) -> None:
    """Show how closed an Artifact is, and every manifest that names its bytes, as far as the key may see them."""
    with reach(target, target.key("owner")) as node, _here(content_hash):
        full = _full_hash(node, content_hash)
        document, manifests = node.artifact(full), []
        page = document
        while True:
            manifests += page["manifests"]
            if "next" not in page:
                break
            page = node.artifact(full, after=page["next"])
    document = {name: value for name, value in document.items() if name != "next"} | {"manifests": manifests}
    heads = ["artifact", "mission", "work", "file", "producer", "classification", "made of", "createdAt"]
    cells = [
        [
            short_id(row["artifactId"]),
            short_id(row["missionId"]),
            short_id(row["workItemId"]),
            file_names(row),
            short(row["producer"]["agentId"]),
            row["classification"],
            len(row["sourceArtifactHashes"]),
            moment(row["createdAt"]),
        ]
        for row in manifests
    ]
    told = {name: value for name, value in document.items() if name != "manifests"}
    emit(target.as_json, document, [*facts(told), "", *table(heads, cells)])


def _walked(target: Target, content_hash: str, direction: Direction, depth: int, limit: int) -> None:
    with reach(target, target.key("owner")) as node, _here(content_hash):
        full = _full_hash(node, content_hash)
        walk = node.walk(full, direction, depth=depth)
        steps = list(islice(walk, limit + 1))
    more = len(steps) > limit
    del steps[limit:]
    contents = walk.contents
    document = {
        "contentHash": full,
        "direction": direction,
        "depth": depth,
        "contents": list(contents.values()),
        "derivations": steps,
        "more": more,
    }
    there, here = ("sourceHash", "contentHash") if direction == "sources" else ("contentHash", "sourceHash")
    heads = ["step", "contentHash", "classification", "of" if direction == "derived" else "in", "work", "producer"]
    cells = [
        [
            step["depth"],
            step[there],
            _closed(contents[step[there]]),
            step[here][7:15],
            short_id(step["workItemId"]),
            short(step["agentId"]),
        ]
        for step in steps
    ]
    lines = table(heads, cells)
    if more:
        lines.append(f"there is more: raise --limit above {limit}")
    emit(target.as_json, document, lines)


def _closed(content: dict[str, Any]) -> str:
    if not content["known"]:
        return "not known here"
    return content["classification"] or "not published"


_DEPTH = click.option("--depth", type=click.IntRange(1, 64), default=1, show_default=True, help="How many steps far.")
_LIMIT = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="At most so many steps."
)


@artifact.command()
@click.argument("content_hash", metavar="HASH")
@_DEPTH
@_LIMIT
@at_node
def sources(target: Target, content_hash: str, depth: int, limit: int) -> None:
    """What an Artifact was made of, and how closed that is.

    What the key may not see is named by its hash alone.
    """
    _walked(target, content_hash, "sources", depth, limit)


@artifact.command()
@click.argument("content_hash", metavar="HASH")
@_DEPTH
@_LIMIT
@at_node
def derived(target: Target, content_hash: str, depth: int, limit: int) -> None:
    """What was made of an Artifact, in the Groups that the key may see."""
    _walked(target, content_hash, "derived", depth, limit)


@contextmanager
def _here(content_hash: str) -> Iterator[None]:
    """Say in the words of this command that an Artifact is not here, or not for this key."""
    try:
        yield
    except GroupNotFound:
        raise Failure(f"no Artifact {content_hash} is here for this key: see `mwnode artifact list`") from None


def _published(node: Reach, group_id: str) -> Iterator[dict[str, Any]]:
    """Each manifest of a Group, with the name of the work that it came from."""
    narrator = Narrator()
    for event in events_of(node, group_id):
        narrator.tell(event)
        if event["kind"] == "artifact.published":
            manifest = event["payload"]["artifact"]
            yield {**manifest, "work": narrator.name(manifest["workItemId"])}


def _full_hash(node: Reach, text: str) -> str:
    """The content hash that a hash or its beginning means; Failure for what is none, or means none or several."""
    digits = text.removeprefix("sha256:").lower()
    if not digits or len(digits) > HEX_DIGITS or set(digits) - set("0123456789abcdef"):
        raise click.UsageError(
            f"{text!r} is no hash: sha256: and {HEX_DIGITS} hexadecimal digits, or the first of them"
        )
    if len(digits) == HEX_DIGITS:
        return f"sha256:{digits}"
    known = {
        row["contentHash"]: Candidate(row["contentHash"], row["work"])
        for listed in missions(node)
        for row in _published(node, listed["groupId"])
        if row["contentHash"].startswith(f"sha256:{digits}")
    }
    return pick("Artifact", f"sha256:{digits}", known.values(), "mwnode artifact list")
