"""`mwnode export` and `import`: Groups from node to node on a stick."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import msgspec

from mwnode.cli.compose import now
from mwnode.cli.failure import Failure
from mwnode.cli.keyless import is_keyless
from mwnode.cli.output import emit, facts
from mwnode.cli.progress import progress
from mwnode.cli.target import Target, at_home
from mwnode.home import Organization, create_keyless, open_home
from mwnode.protocol.commands import Binding
from mwnode.store.bundle import BundleFault, Carried, Header, bring_in, read_header
from mwnode.store.bundle import export as export_bundle
from mwnode.store.environment import LmdbStore
from mwnode.store.trim import find_group
from mwnode.trust.ed25519 import decode_base64url, encode_base64url
from mwnode.trust.keys import public_key_in


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--group", "groups", multiple=True, metavar="ID", help="Only this Group; may be given more than once.")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The authority's key; default: of HOME.")
@at_home
def export(target: Target, file: Path, groups: tuple[str, ...]) -> None:
    """Write Groups with their Artifacts, documents, Commands and keys into FILE, signed by the authority.

    Without --group all of them; parents, children and follow-ups of a Mission go along. The node may be serving. FILE
    proves itself to whoever knows the Organization's root key: `mwnode import`.
    """
    home, key = target.home, target.key("authority")
    if key.principal != home.authority_service:
        raise Failure(
            f"an export is signed by {home.authority_service.id}, and --key is the key of {key.principal.type} "
            f"{key.principal.id}: leave --key out to use HOME's keys/authority.key"
        )
    named = _named(home.store_path, groups) if groups else None
    with progress() as show:
        made = export_bundle(
            home.store_path,
            file.absolute(),
            groups=named,
            registry_service=home.registry_service,
            authority_key=key,
            created_at=now().text(),
            progress=show,
        )
    _told(target, file, made, rootKey=read_header(file).root.public_key)


def _named(path: Path, groups: tuple[str, ...]) -> list[str]:
    store = LmdbStore.open(path, read_only=True)
    try:
        with store.read() as view:
            return [find_group(view, named) for named in groups]
    finally:
        store.close()


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--root",
    metavar="KEY",
    help="The Organization's root key that you know: base64url, or a key file. Needed where HOME does not exist yet.",
)
@at_home
def import_(target: Target, file: Path, root: str | None) -> None:
    """Prove FILE from the root key alone, then add its Groups to HOME; all of it or nothing.

    HOME belongs to the same Organization, or does not exist yet: then it is made, without keys, for reading and
    proving. Refused while a node serves it. Nothing is ever overwritten: a Group that is here already is refused.
    """
    header = read_header(file)
    given = None if root is None else _root(root, header)
    path = target.home_path
    if (path / "mwnode.toml").exists():
        made = _bring_in(file, open_home(path).store_path, given)
    else:
        if given is None:
            raise Failure(f"{path} does not exist: give the Organization's root key by --root, and it is made")
        made = _new_home(file, path, header, given)
    _told(target, file, made)
    if not target.as_json and is_keyless(open_home(path)):
        click.echo(
            f"Prove it by `mwnode verify --home {path}`. To read it, act with a key that the Organization knows, for "
            f"there is none here: `mwnode mission list --home {path} --key FILE`"
        )


def _bring_in(file: Path, store: Path, root: Binding | None) -> Carried:
    with progress() as show:
        return bring_in(file, store, root=root, progress=show)


def _new_home(file: Path, path: Path, header: Header, root: Binding) -> Carried:
    created = not path.exists()
    organization = Organization(
        id=header.organization_id,
        created_at=header.root.valid_from,
        registry_service=header.registry_service.id,
        authority_service=header.authority_service.id,
    )
    home = create_keyless(path, organization)
    try:
        return _bring_in(file, home.store_path, root)
    except BaseException:
        for each in (home.path / "keys", home.path / "mwnode.toml"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if created:
            home.path.rmdir()
        raise


def _root(text: str, header: Header) -> Binding:
    """The root binding that the header states, when it is of the key that the caller knows."""
    path = Path(text)
    try:
        known = public_key_in(path.read_bytes()) if path.is_file() else decode_base64url(text)
    except ValueError as error:
        raise click.UsageError(f"--root {text} is neither a key file nor a public key in base64url: {error}") from error
    if encode_base64url(known) != header.root.public_key:
        raise BundleFault(f"the bundle goes back to root key {header.root.public_key}, not to the one given by --root")
    return msgspec.structs.replace(header.root, validity_history=())


def _told(target: Target, file: Path, made: Carried, **more: str) -> None:
    document: dict[str, object] = {
        "file": str(file.absolute()),
        "groups": list(made.groups),
        "related": list(made.related),
        "events": made.events,
        "artifacts": made.artifacts,
        "bytes": made.bytes,
        **more,
    }
    shown = {**document, "groups": len(made.groups), "related": len(made.related)}
    emit(target.as_json, document, facts(shown))
