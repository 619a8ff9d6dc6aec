"""Every mistake of form in a plan at once: unknown keys, missing ones, values of the wrong kind. Pure."""

from __future__ import annotations

import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from mwnode.coordinator.plan_text import KeyPath
from mwnode.protocol.plain_words import one_of, plain

Fault = tuple[KeyPath, str]


def faults_of(value: Any, kind: type[Struct]) -> list[Fault]:
    """Key path and text of every place where a parsed plan does not fit its type, in the order of the file."""
    return list(_faults(value, kind, ()))


def _faults(value: Any, stated: Any, path: KeyPath) -> Iterator[Fault]:
    kind = _told(stated)
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
        yield from _of_table(value, kind, path)
    elif get_origin(kind) is tuple and isinstance(value, list):
        for position, member in enumerate(value):
            yield from _faults(member, get_args(kind)[0], (*path, position))
    elif get_origin(kind) is Literal:
        if value not in get_args(kind):
            yield path, f"{value!r} is unknown; it {one_of(get_args(kind))}"
    else:
        yield from _of_whole(value, stated, path)


def _of_table(value: dict[str, Any], kind: type[Struct], path: KeyPath) -> Iterator[Fault]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found: list[Fault] = []
    for name, member in value.items():
        if name in fields:
            found += _faults(member, hints[fields[name].name], (*path, name))
        else:
            found.append(((*path, name), _unknown(name, list(fields))))
    found += [((*path, name), "is missing") for name, field in fields.items() if field.required and name not in value]
    # Only when every member is right by itself can be asked what they say together.
    yield from found or _of_whole(value, kind, path)


def _of_whole(value: Any, kind: Any, path: KeyPath) -> Iterator[Fault]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        yield path, plain(str(error).partition(" - at `")[0])


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; it {one_of(sorted(known))}"


def _told(stated: Any) -> Any:
    """Of a type or nothing, the type."""
    if get_origin(stated) in (Union, types.UnionType):
        members = [one for one in get_args(stated) if one not in (types.NoneType, UnsetType)]
        if len(members) == 1:
            return _told(members[0])
    return stated
