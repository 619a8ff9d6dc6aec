"""`mwnode sign`, `check` and `schema`: single documents, by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from mwnode.cli.failure import Failure
from mwnode.cli.output import emit, facts
from mwnode.cli.reach import at, reach
from mwnode.cli.target import NEW_FILE, Target, at_home, at_node, read_key
from mwnode.protocol import frames, jcs, schemas, strict_json
from mwnode.protocol.documents import SIGNED_DOCUMENTS, DocumentKind
from mwnode.protocol.errors import UnsupportedVersion
from mwnode.protocol.jcs import JcsFault
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.system import SystemClock
from mwnode.trust import keys
from mwnode.trust.registry import NoRegistry, Registry, RegistryFault
from mwnode.trust.verification import PROTECTED_TIMES, Verified, expected_signer, verify

_PLACEHOLDER = re.compile(r"\A<[\w|.:/-]+>\Z")
_FRAME = "websocket-frame"
_SIGNED = click.Choice(sorted(SIGNED_DOCUMENTS))
_ANY = click.Choice(sorted([*schemas.DOCUMENT_TYPES, _FRAME]))


def _read(file: str) -> bytes:
    if file == "-":
        return _not_empty("standard input", sys.stdin.buffer.read())
    try:
        raw = Path(file).read_bytes()
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}") from None
    return _not_empty(file, raw)


def _not_empty(file: str, raw: bytes) -> bytes:
    """What was read; Failure where there is nothing, as a shell leaves it when the command before it failed."""
    if not raw.strip():
        raise Failure(f"{file} is empty: there is no document in it (did the command that should write it fail?)")
    return raw


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


@click.command()
@click.argument("kind", metavar="KIND", type=_SIGNED)
@click.argument("file", metavar="FILE|-")
@click.option("--key", "key_file", required=True, type=click.Path(path_type=Path), help="The key file to sign with.")
@click.option("--output", "-o", type=NEW_FILE, metavar="FILE", help="Default: standard output.")
@at_home
def sign(target: Target, kind: DocumentKind, file: str, key_file: Path, output: Path | None) -> None:
    """Sign the document in FILE and print it in canonical form; a signature in it is replaced.

    Without its protected time (issuedAt, occurredAt, ...) the present time is put in. -o FILE writes a file only when
    there is something to write; `mwnode command draft KIND` prints a Command to fill in.
    """
    key = read_key(key_file)
    raw = _read(file)
    try:
        mapping = strict_json.parse(raw)
        if not isinstance(mapping, dict):
            raise Failure(f"{file} holds no JSON object")
        unfilled = sorted(set(_placeholders(mapping)))
        if unfilled:
            raise Failure(
                f"{file} leaves {', '.join(unfilled)} to be said: what stands in <angle brackets> is to be filled in"
            )
        signed = _signed(mapping, kind, key)
        document = strict_json.convert(signed, SIGNED_DOCUMENTS[kind])
    except (JsonFault, SchemaFault, JcsFault) as fault:
        raise Failure(f"{file} is no {kind}: {fault}") from None
    wanted = expected_signer(document, kind)
    if wanted[0] != key.principal.type or wanted[1] not in ("", key.principal.id):
        raise Failure(
            f"{key_file} is the key of {key.principal.type} {key.principal.id}, but only "
            f"{' '.join(wanted).strip()} signs this {kind}: use that key, or name this Principal in the document"
        )
    encoded = jcs.canonical(document) + b"\n"
    if output is None:
        sys.stdout.buffer.write(encoded)
    else:
        output.write_bytes(encoded)
        emit(target.as_json, {"file": str(output)}, f"signed: {output}")


def _placeholders(value: Any) -> Iterator[str]:
    """What a draft leaves to be said: texts that are one word in angle brackets."""
    if isinstance(value, str):
        if _PLACEHOLDER.match(value):
            yield value
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _placeholders(member)


def _signed(mapping: dict[str, Any], kind: DocumentKind, key: keys.SigningKey) -> dict[str, Any]:
    member = _camel(PROTECTED_TIMES[kind])
    created_at = mapping.setdefault(member, SystemClock().now().text())
    if not isinstance(created_at, str) or not created_at.endswith("Z"):
        raise Failure(f"{member} must be a UTC time ending in Z")
    return keys.sign_mapping(mapping, key, created_at)


@click.command()
@click.argument("kind", metavar="KIND", type=_ANY)
@click.argument("file", metavar="FILE|-")
@click.option(
    "--registry", "registry_file", type=click.Path(path_type=Path), help="Registry evidence to check against."
)
@at_node
def check(target: Target, kind: str, file: str, registry_file: Path | None) -> None:
    """Check the document in FILE, stage by stage, and say where it fails.

    Signed documents are verified against --registry, else against the Registry of the node that --url or --home names.
    Objects without a signature are checked against their schema.
    """
    raw = _read(file)
    if kind in SIGNED_DOCUMENTS:
        found = _check_signed(raw, kind, _registry(target, registry_file))
    else:
        found = _check_unsigned(raw, kind)
    emit(target.as_json, found, facts(found))
    if not found["ok"]:
        click.get_current_context().exit(1)


def _registry(target: Target, registry_file: Path | None) -> Registry | NoRegistry:
    if registry_file is None and target.url is None and not target.home_path.is_dir():
        return NoRegistry("no-registry-at-hand")
    try:
        if registry_file is not None:
            return Registry.from_evidence(strict_json.parse(_read(str(registry_file))))
        with reach(target, target.key("owner")) as node:
            return Registry.from_evidence(node.get(at("registry")))
    except (JsonFault, RegistryFault) as fault:
        raise Failure(f"the Registry evidence proves nothing: {fault}") from None


def _check_signed(raw: bytes, kind: DocumentKind, registry: Registry | NoRegistry) -> dict[str, Any]:
    outcome = verify(raw, kind, registry)
    if isinstance(outcome, Verified):
        return {
            "ok": True,
            "stage": "complete",
            "keyId": outcome.key_id,
            "principal": f"{outcome.principal.type} {outcome.principal.id}",
            "protectedTime": outcome.document.signature.created_at,
            "signingHash": outcome.signing_hash,
        }
    found = {"ok": False, "stage": outcome.stage, "reason": outcome.reason, "code": outcome.code.value}
    if outcome.detail:
        found["detail"] = outcome.detail
    if outcome.reason == "no-registry-at-hand":
        found["detail"] = "parse, schema and signature-envelope pass; name a Registry by --registry, --url or --home"
    return found


def _check_unsigned(raw: bytes, kind: str) -> dict[str, Any]:
    try:
        if kind == _FRAME:
            frames.check_frame(raw)
        else:
            strict_json.decode(raw, schemas.DOCUMENT_TYPES[kind])
    except JsonFault as fault:
        return {"ok": False, "stage": "parse", "reason": fault.reason, "detail": str(fault)}
    except SchemaFault as fault:
        return {"ok": False, "stage": "schema", "reason": "schema-mismatch", "detail": str(fault)}
    except UnsupportedVersion as fault:
        return {"ok": False, "stage": "schema", "reason": "unsupported-version", "detail": str(fault)}
    return {"ok": True, "stage": "schema"}


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@at_home
def schema(target: Target, directory: Path) -> None:
    """Write the JSON Schemas of our types into DIRECTORY: documents, frames, and every Command and Event payload."""
    generated = schemas.generate()
    for name, content in generated.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    emit(
        target.as_json,
        {"directory": str(directory), "schemas": len(generated)},
        f"{len(generated)} schemas in {directory}",
    )
