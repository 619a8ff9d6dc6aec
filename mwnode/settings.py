"""``mwnode.toml``: who a HOME belongs to, where it serves, its policy and limits; and what is wrong with one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from mwnode.authority.policy import Policy
from mwnode.protocol.limits import Limits
from mwnode.protocol.plain_words import plain

DEFAULT_PORT = 8765
SETTINGS_FORMAT = 1
_UNKNOWN = re.compile(r"unknown field `(.+)`")
_MISSING = re.compile(r"missing required field `(.+)`")


class HomeError(Exception):
    """HOME cannot be used as it is; the text says what is wrong and what to do, in one line."""


class Organization(Struct, frozen=True, forbid_unknown_fields=True):
    """Who this HOME belongs to: the Organization and its two services."""

    id: str
    created_at: str
    registry_service: str
    """The service that signs Agent Cards and Registry changes, with ``keys/organization.key``."""
    authority_service: str
    """The service that signs Events, with ``keys/authority.key``."""


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """Where ``mwnode serve`` listens unless told otherwise; a certificate of one's own replaces the local CA's."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    certificate: str | None = None
    certificate_key: str | None = None
    certificate_ca: str | None = None


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """``mwnode.toml``, typed."""

    format: int
    organization: Organization
    server: Server = Server()
    policy: Policy = Policy()
    limits: Limits = Limits()


def read_settings(path: Path) -> Settings:
    """The settings of the HOME at a path; HomeError tells what is missing or wrong in them, and where."""
    settings_path = path / "mwnode.toml"
    try:
        text = settings_path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise HomeError(f"{settings_path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except (FileNotFoundError, NotADirectoryError):
        raise HomeError(
            f"{path} is no mwnode HOME: make one with `mwnode init {path}`, or name one by --home"
        ) from None
    except OSError as error:
        raise HomeError(f"{settings_path} cannot be read: {error.strerror}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HomeError(f"{settings_path}: {error}") from error
    except (RecursionError, ValueError) as error:
        # Brackets without end, and integers of thousands of digits.
        raise HomeError(f"{settings_path} is no settings file: it cannot be read to its end") from error
    known = values.get("format", SETTINGS_FORMAT)
    if isinstance(known, int) and known > SETTINGS_FORMAT:
        raise HomeError(f"{settings_path} has format {values['format']}: a newer mwnode made it, so use that one")
    return _settings(values, text, settings_path)


def _settings(values: Mapping[str, Any], text: str, source: Path) -> Settings:
    """The settings, typed; HomeError with line and key of the mistake, and the nearest key for an unknown one."""
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        told, _, expression = plain(str(error)).partition(" - at `")
        path = re.findall(r"\w+", expression)
        unknown, missing = _UNKNOWN.search(told), _MISSING.search(told)
        if unknown:
            path.append(unknown[1])
            near = get_close_matches(unknown[1], _keys_beside(path), n=1)
            told = "unknown key" + (
                f"; did you mean {near[0]}?" if near else "; see the comments of a fresh mwnode.toml"
            )
        elif missing:
            path.append(missing[1])
            told = "is missing"
        else:
            told += _allowed(path)
        raise HomeError(f"{_place(source, text, path)}: {told}") from error


def _keys_beside(path: list[str]) -> list[str]:
    """The keys that may stand where the last one of a path does."""
    kind: Any = Settings
    for name in path[:-1]:
        kind = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return list(kind.__struct_fields__)


def _allowed(path: list[str]) -> str:
    """The range of numbers that a key may have, in words; nothing for other keys."""
    kind: Any = Settings
    for name in path:
        if not hasattr(kind, "__struct_fields__"):
            return ""
        kind = get_type_hints(kind, include_extras=True).get(name)
    stated = [kind, *get_args(kind)]
    bounds = [each for one in stated for each in getattr(one, "__metadata__", ()) if isinstance(each, Meta)]
    if not bounds or bounds[0].le is None:
        return ""
    least = f"more than {bounds[0].gt}" if bounds[0].ge is None else f"from {bounds[0].ge}"
    return f"; allowed is {least} up to {bounds[0].le}"


def _place(source: Path, text: str, path: list[str]) -> str:
    """File, line and key; without the line where it cannot be found."""
    table, wanted = "", ".".join(path)
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([\w.]+)\s*\]", line)
        key = re.match(r"\s*([\w.]+)\s*=", line)
        if header:
            table = header[1]
        here = table if header else ".".join(part for part in (table, key[1]) if part) if key else ""
        if here and here == wanted:
            return f"{source}:{number}: {wanted}"
    return f"{source}: {wanted}" if wanted else str(source)


def settings_text(organization: Organization) -> str:
    defaults = "\n".join(f"# {line}" for line in _defaults(Policy()))
    limits = "\n".join(f"# {line}" for line in _defaults(Limits()))
    return f"""\
# One mwnode HOME. Keys below that are commented out show their defaults; times are seconds unless named otherwise.
format = {SETTINGS_FORMAT}

[organization]
id = "{organization.id}"
created_at = "{organization.created_at}"
registry_service = "{organization.registry_service}"
authority_service = "{organization.authority_service}"

[server]
# host = "127.0.0.1"
# port = {DEFAULT_PORT}
# A certificate of your own, its key and the CA that clients trust, as paths inside HOME or absolute ones:
# certificate = "tls/own.pem"
# certificate_key = "tls/own.key"
# certificate_ca = "tls/own-ca.pem"

[policy]
{defaults}

[limits]
{limits}
"""


def _defaults(settings: Struct) -> Iterator[str]:
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if value is not None:
            yield f"{name} = {msgspec.json.encode(value).decode()}"
