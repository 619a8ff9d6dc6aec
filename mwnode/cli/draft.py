"""Drafts of documents: every member that must be there, with what belongs into it between angle brackets."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from mwnode.protocol import scalars

_HINTS: dict[Any, str] = {
    scalars.Id: "<URI>",
    scalars.Uri: "<URI>",
    scalars.WssUri: "<wss://...>",
    scalars.Timestamp: "<2030-01-31T12:00:00Z>",
    scalars.Sha256: "<sha256:...>",
    scalars.Semver: "<1.0.0>",
    scalars.Duration: "<PT30M>",
}


def draft_payload(kind: type[Struct]) -> dict[str, Any]:
    """The required members of a payload, each as a placeholder of its type."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.encode_name: _placeholder(hints[field.name], field.encode_name)
        for field in msgspec.structs.fields(kind)
        if field.required
    }


def _placeholder(stated: Any, name: str) -> Any:
    if stated in _HINTS:
        return _HINTS[stated]
    origin, arguments = get_origin(stated), get_args(stated)
    if origin in (Union, types.UnionType):
        return _placeholder(next(one for one in arguments if one not in (types.NoneType, UnsetType)), name)
    if origin is Literal:
        return f"<{'|'.join(map(str, arguments))}>" if len(arguments) > 1 else arguments[0]
    if origin is tuple:
        return [_placeholder(arguments[0], name)]
    if isinstance(stated, type) and issubclass(stated, Struct):
        tag = stated.__struct_config__.tag
        tagged = {stated.__struct_config__.tag_field: tag} if tag is not None else {}
        return tagged | draft_payload(stated)
    if origin is not None and hasattr(stated, "__metadata__"):
        return _placeholder(arguments[0], name)
    plain = stated if isinstance(stated, type) else getattr(stated, "__origin__", Any)
    return {int: 0, float: 0, bool: False, dict: {}}.get(plain, f"<{name}>")
