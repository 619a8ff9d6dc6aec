"""What every command is told: which HOME, which node, whose key, and how to print."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from mwnode.cli.failure import Failure
from mwnode.client.address import parse_address
from mwnode.client.errors import ClientError
from mwnode.home import Home, find_home, load_key, open_home
from mwnode.trust.keys import SigningKey

F = TypeVar("F", bound=Callable[..., Any])

PASSPHRASE_VARIABLE = "MWNODE_PASSPHRASE_FILE"

KeyName = Literal["owner", "organization", "authority", "audit"]
"""The keys that `mwnode init` makes."""
_MAKERS = (
    "a person's is made and bound by `mwnode human add NAME`, an Agent's by `mwnode agent add NAME`, a service's by "
    "`mwnode key add NAME --principal service:ID`, where the Organization's key is"
)
_MISSING: dict[KeyName, str] = {
    "owner": "this acts as a person, Agent or service that the Organization knows; give the key of one by --key FILE: "
    + _MAKERS,
    "organization": "this needs the Organization's own key, which vouches for all others and is made once, by "
    "`mwnode init`: give it by --key FILE, from wherever it is kept",
    "authority": "this needs the key that signs Events, made once by `mwnode init`: put it back from a copy of "
    "keys/, or do this where it is",
    "audit": "this needs the key that the diagnostics are sealed for, made once by `mwnode init`: give it by "
    "--key FILE, from wherever it is kept",
}
"""What to do about each key that is not there."""


@dataclass(frozen=True)
class Target:
    """The options shared by all commands. `url`, `ca` and `key` are None where the command has no such option."""

    as_json: bool
    home_option: Path | None
    url: str | None = None
    ca: Path | None = None
    key_option: Path | None = None
    at_node: bool = False
    """Whether the command takes --url, --ca and --key: then a HOME is not the only way to say which node is meant."""

    @property
    def home_path(self) -> Path:
        return find_home(self.home_option, os.environ)

    @cached_property
    def home(self) -> Home:
        """The HOME meant; HomeError or Failure when there is none."""
        path = self.home_path
        if self.at_node and not (path / "mwnode.toml").exists() and (path.is_dir() or not path.exists()):
            raise Failure(f"{path.absolute()} is no mwnode HOME: {self._without_home()}")
        return open_home(path)

    def _without_home(self) -> str:
        if self.url is not None:
            return (
                f"--url says which node, and nothing says who asks: give your key by --key FILE ({_MAKERS}), "
                "or a HOME that has one by --home"
            )
        return (
            f"make one with `mwnode init {self.home_path.absolute()}`, name one by --home or $MWNODE_HOME, "
            "or name a node elsewhere by --url, --ca and --key"
        )

    def key(self, name: KeyName) -> SigningKey:
        """The key that signs: the file given by --key, else HOME's key of that name; Failure where there is none."""
        if self.key_option is not None:
            return read_key(self.key_option)
        path = self.home.key_path(name)
        if not path.exists():
            raise Failure(f"no key file {path} ({self._kept()}): {_MISSING[name]}")
        return read_key(path)

    def _kept(self) -> str:
        """Which keys HOME has, for somebody who looks for one."""
        names = sorted(path.stem for path in (self.home.path / "keys").glob("*.key"))
        if names:
            return f"this HOME keeps the keys {', '.join(names)}"
        return "this HOME keeps no key at all, as `mwnode import` makes it"

    def agent_key(self) -> SigningKey:
        """The key of an Agent's process: --key, which has no default; UsageError without it."""
        if self.key_option is None:
            raise click.UsageError(
                "an Agent acts with a key of its own: give --key FILE (`mwnode agent add NAME` makes keys/NAME.key)"
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


class NewFile(click.Path):
    """A file to write: its directory is there, and it is no directory itself."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = super().convert(value, param, ctx)
        directory = Path(os.fsdecode(path)).absolute().parent
        if not directory.is_dir():
            self.fail(f"there is no directory {directory}: make it first, or choose another place", param, ctx)
        return path


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of --url, where it is the address of a node."""
    if value is not None:
        try:
            parse_address(value)
        except ClientError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


NEW_FILE = NewFile()
_FILE = click.Path(path_type=Path)
_HOME = click.option("--home", type=_FILE, metavar="HOME", help="Default: $MWNODE_HOME, else ./mwnode-home.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_URL = click.option(
    "--url", callback=_address, metavar="URL", help="A node elsewhere: https://HOST:PORT. Default: the one at HOME."
)
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
        at_node = _URL in options
        return command(Target(as_json, home, url, ca, key, at_node), **others)

    wrapped: Any = call
    for option in reversed(options):
        wrapped = option(wrapped)
    result: F = wrapped
    return result
