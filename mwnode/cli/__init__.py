"""The `mwnode` command. Each family lives in a module of its own, imported only when it is called for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from keyword import iskeyword

import click

from mwnode import __version__
from mwnode.cli.exits import run

FAMILIES: dict[str, tuple[str, str]] = {
    "init": ("init", "Make an Organization: keys, local CA, settings and an empty store."),
    "serve": ("serve", "Serve HOME: the authority of its Organization."),
    "coordinator": ("coordinator", "A Coordinator that follows a plan."),
    "worker": ("worker", "Any program as a Worker."),
    "agent": ("agent", "Register, show and revoke Agents."),
    "human": ("human", "Register people, who own Missions and approve them."),
    "key": ("key", "Bind, list and revoke keys."),
    "mission": ("mission", "Create, watch, direct and approve Missions."),
    "waiting": ("waiting", "Who must act next, on what, by when, and what happens otherwise."),
    "why": ("why", "The chain of facts that makes a WorkItem or Mission be where it is."),
    "command": ("command", "Send a signed Command by hand."),
    "events": ("events", "Print a Group's Events, as they come with --follow."),
    "artifact": ("artifact", "Put, get and list Artifacts."),
    "verify": ("store", "Prove HOME's file again, from the file alone."),
    "backup": ("store", "Copy HOME's file, also while a node serves it."),
    "compact": ("store", "Rewrite HOME's file without its free pages."),
    "export": ("carry", "Carry Groups out in one signed file."),
    "import": ("carry", "Bring in what another node carried out, after proving it."),
    "doctor": ("doctor", "What is odd about HOME and its file, and what to do."),
    "sign": ("documents", "Sign a document by hand."),
    "check": ("documents", "Check a document by hand, stage by stage."),
    "schema": ("documents", "Write the JSON Schemas of our types."),
    "demo": ("demo", "See it work: a Mission from order to Approval, and a node killed on the way."),
    "bench": ("bench", "Figures on this machine, each beside its floor."),
    "conformance": ("conformance", "Run a published bundle of vectors."),
}
"""Command name: the module under `mwnode.cli` whose attribute of the same name it is, and its one line of help."""


class Families(click.Group):
    """A group whose commands are imported when used: the help and every single command start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(FAMILIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in FAMILIES:
            return None
        module = importlib.import_module(f"mwnode.cli.{FAMILIES[cmd_name][0]}")
        attribute = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        command: click.Command = getattr(module, attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in FAMILIES.items()])


@click.group(cls=Families, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mwnode")
def mwnode() -> None:
    """A single-file store and reference node for MissionWeaveProtocol 0.1.

    Two commands show it at work: `mwnode demo`, or by hand `mwnode init` and `mwnode serve`. HOME is --home, else
    $MWNODE_HOME, else ./mwnode-home.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 ok, 1 refused or failed, 2 wrong usage."""
    sys.exit(run(mwnode, arguments))
