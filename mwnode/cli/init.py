"""`mwnode init`: make an Organization."""

from __future__ import annotations

from pathlib import Path

import click

from mwnode.cli.output import emit, facts
from mwnode.cli.target import Target, at_home
from mwnode.home import Home, create_home
from mwnode.node import Node
from mwnode.system import OsEntropy, SystemClock


@click.command()
@click.argument("directory", metavar="[HOME]", type=click.Path(path_type=Path), required=False)
@at_home
def init(target: Target, directory: Path | None) -> None:
    """Make an Organization in HOME: its keys, a local CA, settings and an empty store."""
    home = make(directory or target.home_path)
    document = made(home)
    emit(
        target.as_json,
        document,
        [
            *facts({"Organization": home.organization_id, "HOME": home.path, "CA": home.ca_path}),
            f"Keys are in {home.path / 'keys'}, readable by you alone. Next: mwnode serve --home {home.path}",
        ],
    )


def make(path: Path) -> Home:
    """A new HOME with an empty store; HomeError when something is there already."""
    home = create_home(path, SystemClock(), OsEntropy())
    Node.open(home.path).close()
    return home


def made(home: Home) -> dict[str, object]:
    """What `init --json` prints: the Organization and the paths of what was made."""
    return {
        "organizationId": home.organization_id,
        "home": str(home.path),
        "ca": str(home.ca_path),
        "keys": {name: str(home.key_path(name)) for name in ("organization", "authority", "owner")},
    }
