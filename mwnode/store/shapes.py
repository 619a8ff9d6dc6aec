"""Whether a row may be written: every document in it has its required members, of the right types (R-2-02).

Rows are built from documents that were checked member by member when they were read, and by code that fills in new
ones. Checking every text against its pattern again would cost more than the signatures; what construction by hand can
forget is a member or a type. So each row type gets a twin without patterns, and a row's encoding must fit the twin.
"""

from __future__ import annotations

import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

_twins: dict[type[Struct], type[Struct]] = {}


def twin(kind: type[Struct]) -> type[Struct]:
    """The same struct without patterns and bounds on its members."""
    known = _twins.get(kind)
    if known is not None:
        return known
    config = kind.__struct_config__
    hints = get_type_hints(kind, include_extras=True)
    members: list[Any] = []
    for field in msgspec.structs.fields(kind):
        stripped = _strip(hints[field.name])
        # A default only has to make the member optional; a twin's values are thrown away.
        members.append((field.name, stripped) if field.required else (field.name, stripped, msgspec.UNSET))
    made = msgspec.defstruct(
        kind.__name__,
        members,
        kw_only=True,
        array_like=config.array_like,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
        rename={field.name: field.encode_name for field in msgspec.structs.fields(kind)},
    )
    _twins[kind] = made
    return made


def _strip(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return _strip(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Struct):
        return twin(hint)
    if origin is Literal or origin is None:
        return hint
    arguments = tuple(_strip(argument) for argument in get_args(hint))
    if origin in (Union, types.UnionType):
        return reduce(or_, arguments)
    return origin[arguments]


def check_of(kind: type[Struct]) -> msgspec.msgpack.Decoder[Any]:
    """A decoder that raises msgspec.ValidationError for encodings that do not fit the shape of ``kind``."""
    return msgspec.msgpack.Decoder(twin(kind))
