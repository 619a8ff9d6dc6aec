"""What every command is told: which HOME, which node, whose key, and how to print."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from mwnode.cli.exits import Failure
from mwnode.home import Home, find_home, load_key, open_home
from mwnode.trust.keys import SigningKey

F = TypeVar("F", bound=Callable[..., Any])

PASSPHRASE_VARIABLE = "MWNODE_PASSPHRASE_FILE"


@dataclass(frozen=True)
class Target:
    """The options shared by all commands. `url`, `ca` and `key` are None where the command has no such option."""

    as_json: bool
    home_option: Path | None
    url: str | None = None
    ca: Path | None = None
    key_option: Path | None = None

    @property
    def home_path(self) -> Path:
        return find_home(self.home_option, os.environ)

    @cached_property
    def home(self) -> Home:
        """The HOME meant; HomeError when there is none."""
        return open_home(self.home_path)

    def key(self, name: str) -> SigningKey:
        """The key that signs: the file given by --key, else HOME's key of that name."""
        return read_key(self.key_option or self.home.key_path(name))

    def agent_key(self) -> SigningKey:
        """The key of an Agent's process: --key, which has no default; UsageError without it."""
        if self.key_option is None:
            raise click.UsageError(
                "an Agent acts with a key of its own: give --key FILE (`mwnode agent add` makes one)"
            )
        return read_key(self.key_option)


def read_key(path: Path) -> SigningKey:
    """The key in a file, opened with its passphrase where it is sealed. Warns on stderr when others can read it too."""
    key = load_key(path, passphrase(path))
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        click.echo(f"mwnode: warning: others can read the key file {path} (mode {mode:o}): chmod 600 {path}", err=True)
    return key


def passphrase(path: Path) -> bytes | None:
    """The passphrase of a sealed key file: from $MWNODE_PASSPHRASE_FILE, else asked for on a terminal.

    None for a key that is not sealed; Failure when it is sealed and nobody can be asked.
    """
    try:
        sealed = b'"sealed"' in path.read_bytes()
    except OSError:
        return None  # whoever loads the key names the fault
    if not sealed:
        return None
    named = os.environ.get(PASSPHRASE_VARIABLE)
    if named:
        return Path(named).read_bytes().rstrip(b"\r\n")
    if sys.stdin.isatty():
        answer: str = click.prompt(f"Passphrase of {path}", hide_input=True, err=True)
        return answer.encode()
    raise Failure(f"{path} is sealed: name a file with its passphrase in ${PASSPHRASE_VARIABLE}")


def new_passphrase(path: Path) -> bytes:
    """A passphrase to seal a key file by: from $MWNODE_PASSPHRASE_FILE, else asked for twice on a terminal."""
    named = os.environ.get(PASSPHRASE_VARIABLE)
    if named:
        chosen = Path(named).read_bytes().rstrip(b"\r\n")
    elif sys.stdin.isatty():
        chosen = click.prompt(f"New passphrase of {path}", hide_input=True, confirmation_prompt=True, err=True).encode()
    else:
        raise Failure(
            f"nobody can be asked without a terminal: name a file with the passphrase in ${PASSPHRASE_VARIABLE}"
        )
    if not chosen:
        raise Failure(f"an empty passphrase seals nothing: {path} was left as it is")
    return chosen


def at_home(command: F) -> F:
    """Give a command --home and --json; it takes them as its first argument, `target`."""
    return _with_options(command, _HOME, _JSON)


def at_node(command: F) -> F:
    """Give a command --home, --json, --url, --ca and --key; it takes them as its first argument, `target`."""
    return _with_options(command, _URL, _CA, _KEY, _HOME, _JSON)


_FILE = click.Path(path_type=Path)
_HOME = click.option("--home", type=_FILE, metavar="HOME", help="Default: $MWNODE_HOME, else ./mwnode-home.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_URL = click.option("--url", metavar="URL", help="A node elsewhere: https://HOST:PORT. Default: the one at HOME.")
_CA = click.option("--ca", type=_FILE, metavar="FILE", help="The CA that vouches for the node.")
_KEY = click.option("--key", type=_FILE, metavar="FILE", help="The key file to act with.")


def _with_options(command: F, *options: Callable[[Any], Any]) -> F:
    @wraps(command)
    def call(
        home: Path | None,
        as_json: bool,
        url: str | None = None,
        ca: Path | None = None,
        key: Path | None = None,
        **others: Any,
    ) -> Any:
        return command(Target(as_json=as_json, home_option=home, url=url, ca=ca, key_option=key), **others)

    wrapped: Any = call
    for option in reversed(options):
        wrapped = option(wrapped)
    result: F = wrapped
    return result
