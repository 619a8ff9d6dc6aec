"""Every command is called wrongly: a clear error, the right exit status, nothing on stdout, and nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mwnode.cli import mwnode
from tests.cli.support import CHECKOUT, ServedHome, cli

PLAN = CHECKOUT / "fixtures" / "plans" / "release.toml"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(mwnode))


def called(path: tuple[str, ...], argument: str) -> list[str]:
    """A command with something for each argument and option that it must have."""
    words = list(path)
    for parameter in ALL[path].params:
        if not parameter.required:
            continue
        choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
        value = str(next(iter(choices), argument))
        words += [parameter.opts[0], value] if isinstance(parameter, click.Option) else [value]
    return words


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_and_knows_its_options(path: tuple[str, ...]) -> None:
    shown = cli(*path, "--help")
    assert shown.status == 0
    assert shown.out.startswith(f"Usage: mwnode {' '.join(path)}")
    assert "--json" in shown.out
    assert shown.err == ""
    wrong = cli(*path, "--frobnicate")
    assert (wrong.status, wrong.out) == (2, "")
    assert "No such option" in wrong.err
    assert len(wrong.err.splitlines()) == 1


@pytest.mark.parametrize("path", [path for path in ALL if len(called(path, "")) > len(path)], ids=" ".join)
def test_whatever_a_command_must_have_is_named_where_it_is_missing(path: tuple[str, ...]) -> None:
    wrong = cli(*path)
    assert (wrong.status, wrong.out) == (2, "")
    assert "Missing" in wrong.err
    assert f"mwnode {' '.join(path)} --help" in wrong.err
    assert len(wrong.err.splitlines()) == 1


NEEDS_NO_HOME = {("init",), ("serve",), ("demo",), ("bench",), ("schema",)}
"""These make one, or need none."""


@pytest.mark.parametrize("path", [path for path in ALL if path not in NEEDS_NO_HOME], ids=" ".join)
def test_without_a_home_and_its_files_a_command_says_so(path: tuple[str, ...], tmp_path: Path) -> None:
    home = tmp_path / "none"
    refused = cli(*called(path, str(tmp_path / "absent")), "--home", home)
    assert refused.status in (1, 2), refused.out
    assert refused.out == ""
    assert len(refused.err.splitlines()) == 1
    assert "absent" in refused.err or "none" in refused.err or "--" in refused.err
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Organizations: `home` with an Agent and a Mission, and `other`."""
    place = tmp_path_factory.mktemp("mistakes")
    for name in ("home", "other"):
        assert cli("init", place / name).status == 0
    assert cli("agent", "add", "lead", "--home", place / "home").status == 0
    assert cli("mission", "create", PLAN, "--coordinator", "lead", "--home", place / "home").status == 0
    (place / "directory").mkdir()
    (place / "bytes").write_bytes(bytes(range(256)))
    (place / "empty").touch()
    (place / "list.json").write_text("[1, 2]")
    (place / "deep.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    return place


OWNER, OTHERS = "@home/keys/owner.key", "@other/keys/owner.key"
MISSION = "tally 1.4"
MISTAKES: dict[str, tuple[int, str]] = {
    "agent add new --slots many": (2, "'many' is not a whole number"),
    "agent add new --public-key @@": (2, "--public-key '@@' is not base64url"),
    f"agent add new --key {OWNER}": (1, "registering needs the Organization's key"),
    f"human add new --key {OWNER}": (1, "registering needs the Organization's key"),
    f"key add new --principal human:urn:x --key {OWNER}": (1, "needs the Organization's key"),
    "human add new --key @other/keys/organization.key": (1, "belongs to Organization"),
    f"mission list --key {OTHERS}": (1, "give a key of this one by --key, or the other HOME by --home"),
    "mission list --key @list.json": (1, "is no usable key file: this is not a key file of mwnode"),
    "mission list --key @directory": (1, "cannot be read: Is a directory"),
    "mission list --key @bytes": (1, "is no usable key file"),
    f"mission list --url nonsense --key {OWNER}": (2, "'nonsense' is no URL of a node"),
    f"mission list --url https://127.0.0.1:1 --key {OWNER}": (1, "does a node serve there?"),
    f"mission list --url https://127.0.0.1:1 --key {OWNER} --ca @bytes": (1, "cannot be used"),
    "mission create @bytes": (1, "is not UTF-8 text"),
    "mission create @directory": (1, "cannot be read: Is a directory"),
    "mission show nobody": (1, "see `mwnode mission list`"),
    "mission priority x urgent": (2, "'LEVEL': 'urgent' is not one of 'low', 'usual', 'high'"),
    "mission budget lead toolCallLimit=1.5": (1, "no Mission of yours"),
    "mission watch x --until done": (2, "'awaiting_approval'"),
    "artifact get xyz": (2, "is no hash"),
    "artifact get 00 -o @directory": (2, "is a directory"),
    "artifact get 00 -o @none/x": (2, "make it first"),
    "artifact put @none": (2, "does not exist"),
    "artifact put @directory": (2, "is a directory"),
    "events x --after -1": (2, "-1 is not in the range"),
    "verify --resume @none/x": (2, "make it first"),
    "verify @none": (2, "does not exist"),
    "backup @none/x": (1, "make the directory"),
    "backup @bytes": (1, "exists already"),
    f"export @new --key {OWNER}": (1, "leave --key out to use HOME's keys/authority.key"),
    "export @new --group nobody": (1, "'nobody' is the name of no Group here"),
    "import @bytes": (1, "is no bundle of mwnode"),
    "compact --trim-archived nobody": (1, "'nobody' is the name of no Group here"),
    "doctor --audit --rebuild": (2, "not both"),
    "serve --worker x": (2, "is not KEY=CMD"),
    "serve --plaintext --host 0.0.0.0": (1, "is no loopback address"),
    "worker --exec true": (2, "`mwnode agent add NAME` makes keys/NAME.key"),
    f"worker --exec true --key {OWNER}": (1, "start one with `mwnode serve`"),
    f"worker --exec true --key {OWNER} --url https://127.0.0.1:1": (1, "give an Agent's key"),
    f"sign command @empty --key {OWNER}": (1, "there is no document in it"),
    f"sign command @list.json --key {OWNER}": (1, "holds no JSON object"),
    "sign nothing @empty": (2, "'KIND': 'nothing' is not one of"),
    "check nothing @empty": (2, "'KIND': 'nothing' is not one of"),
    "command send @bytes": (1, "PROTOCOL_VIOLATION"),
    "command send @none": (1, "No such file or directory"),
    "agent import @bytes": (1, "is no JSON object"),
    "agent import @deep.json": (1, "is no JSON object"),
    f"sign command @deep.json --key {OWNER}": (1, "nested deeper than 64"),
    "command send @deep.json": (1, "PROTOCOL_VIOLATION"),
    "schema @bytes": (2, "is a file"),
    "conformance @directory": (1, "point at a checkout of the protocol"),
    "bench append --count few": (2, "'few' is not a whole number"),
    "demo --fault nothing": (2, "`mwnode demo --fault list`"),
}


def spelled(text: str, homes: Path) -> list[str]:
    return [word.replace("@", f"{homes}/", 1) if word[:1] == "@" and word != "@@" else word for word in text.split()]


def state(homes: Path) -> object:
    """All files there are, but for the claim of a node that wanted to serve, and what the Registry and Missions say."""
    files = sorted(path for path in homes.rglob("*") if path.name != "served.json")
    listed = [cli(*words, "--home", homes / "home", "--json").json for words in (("key", "list"), ("mission", "list"))]
    return files, listed


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_refused_in_one_line_and_changes_nothing(text: str, homes: Path) -> None:
    status, told = MISTAKES[text]
    before = state(homes)
    done = cli(*spelled(text, homes), "--home", homes / "home")
    assert done.status == status, done.err
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""
    assert state(homes) == before


def test_at_another_organizations_node_a_key_is_told_whose_it_is(homes: Path) -> None:
    served = ServedHome(homes / "home")
    try:
        node = ("--url", served.listening["http"], "--ca", served.listening["ca"])
        owner, other = homes / "home" / "keys" / "owner.key", homes / "other" / "keys" / "owner.key"
        assert cli("mission", "list", *node, "--key", owner).status == 0
        wrong = cli("mission", "list", *node, "--key", other)
        assert wrong.status == 1
        assert "this node is of Organization" in wrong.err
        assert "nothing was signed" in wrong.err
        assert wrong.err == cli("mission", "list", "--home", homes / "other", *node).err
        untrusted = cli("mission", "list", "--url", served.listening["http"], "--key", owner)
        assert "give its CA by --ca" in untrusted.err
        for command in (("compact",), ("doctor", "--rebuild"), ("serve", "--port", "0")):
            busy = cli(*command, "--home", homes / "home")
            assert busy.status == 1
            assert "stop " in busy.err
    finally:
        served.stop()


def test_a_refusal_cannot_move_the_cursor(homes: Path) -> None:
    done = cli("mission", "show", "\x1b[2Jnobody", "--home", homes / "home")
    assert done.status == 1
    assert "\x1b" not in done.err
