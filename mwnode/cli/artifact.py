"""`mwnode artifact`: bytes addressed by their SHA-256."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from mwnode.cli.missions import events_of, find_mission, missions
from mwnode.cli.output import emit, facts, table
from mwnode.cli.reach import at, reach
from mwnode.cli.target import Target, at_node
from mwnode.narrative import Narrator, short


@click.group()
def artifact() -> None:
    """Put, get and list Artifacts."""


@artifact.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@at_node
def put(target: Target, file: Path) -> None:
    """Store a file's bytes; the same bytes again cost nothing."""
    with reach(target, target.key("owner")) as node:
        stored = node.put_artifact(file)
    emit(target.as_json, stored, facts(stored))


@artifact.command()
@click.argument("content_hash", metavar="HASH")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@at_node
def get(target: Target, content_hash: str, output: Path | None) -> None:
    """Fetch an Artifact's bytes, checked against their hash before the file appears."""
    full = content_hash if content_hash.startswith("sha256:") else f"sha256:{content_hash}"
    with TemporaryDirectory() as directory, reach(target, target.key("owner")) as node:
        # To standard output nothing may go that a later block proves wrong: the whole is checked first.
        path = output or Path(directory) / "artifact"
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
    rows: list[dict[str, Any]] = []
    with reach(target, target.key("owner")) as node:
        views = (
            [find_mission(node, mission)]
            if mission
            else [node.get(at("missions", m["missionId"])) for m in missions(node)]
        )
        for view in views:
            narrator = Narrator()
            for event in events_of(node, view["mission"]["groupId"]):
                narrator.tell(event)
                if event["kind"] == "artifact.published":
                    manifest = event["payload"]["artifact"]
                    rows.append({**manifest, "work": narrator.name(manifest["workItemId"])})
    heads = ["contentHash", "sizeBytes", "mediaType", "work", "producer"]
    cells = [
        [row["contentHash"], row["sizeBytes"], row["mediaType"], row["work"], short(row["producer"]["agentId"])]
        for row in rows
    ]
    documents = [{name: value for name, value in row.items() if name != "work"} for row in rows]
    emit(target.as_json, {"artifacts": documents}, table(heads, cells))
