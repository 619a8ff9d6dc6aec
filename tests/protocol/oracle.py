"""The normative schemas as an oracle, and instances to try on it and on our decoders.

Nothing here uses the code under test: JSON is read by the standard library, schemas are judged by jsonschema with
formats asserted, and time and URI formats by code of their own.
"""

from __future__ import annotations

import calendar
import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from rfc3986_validator import validate_rfc3986

_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
# What ECMA-262 calls white space; Python's own idea of it differs in a few code points.
_BLANK = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def is_timestamp(text: str) -> bool:
    """RFC 3339 within the protocol's profile (R-2-03 to R-2-07)."""
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(max(year, 1), month)[1]):
        return False
    if hour > 23 or minute > 59 or second > 59:
        return False
    if match[7] is None:
        return True
    return int(match[8]) <= 23 and int(match[9]) <= 59 and match.group(7, 8, 9) != ("-", "00", "00")


def is_uri(text: str) -> bool:
    """An absolute URI of RFC 3986, all of it (R-2-15, R-2-16)."""
    plain = all(0x21 <= ord(character) < 0x7F for character in text)
    return plain and bool(validate_rfc3986(text, rule="URI"))


_FORMATS = FormatChecker(formats=())
_FORMATS.checks("date-time")(lambda value: not isinstance(value, str) or is_timestamp(value))
_FORMATS.checks("uri")(lambda value: not isinstance(value, str) or is_uri(value))


def _ecmascript(value: Any) -> Any:
    """Patterns as ECMA-262 means them: ``$`` is the very end, ``\\S`` is not Python's."""
    if isinstance(value, dict):
        return {
            name: item.replace("(?!$)", r"(?!\Z)").removesuffix("$") + (r"\Z" if item.endswith("$") else "")
            if name == "pattern" and item != r"\S"
            else f"[^{_BLANK}]"
            if name == "pattern"
            else _ecmascript(item)
            for name, item in value.items()
        }
    return [_ecmascript(item) for item in value] if isinstance(value, list) else value


class Oracle:
    """All normative schemas, loaded offline by their ``$id``."""

    def __init__(self, bundle: Path) -> None:
        self.schemas: dict[str, Any] = {}
        registry: Registry[Any] = Registry()
        for path in sorted((bundle / "schemas").glob("*.schema.json")):
            schema = _ecmascript(json.loads(path.read_text()))
            Draft202012Validator.check_schema(schema)
            self.schemas[path.name.removesuffix(".schema.json")] = schema
            registry = registry.with_resource(schema["$id"], Resource.from_contents(schema))
        self.registry = registry
        self._validators = {
            name: Draft202012Validator(schema, registry=registry, format_checker=_FORMATS)
            for name, schema in self.schemas.items()
        }

    def accepts(self, name: str, value: Any) -> bool:
        """Whether a value fits a schema."""
        return self._validators[name].is_valid(value)

    def reason(self, name: str, value: Any) -> str:
        """The first thing that does not fit."""
        fault = next(iter(self._validators[name].iter_errors(value)), None)
        return "fits" if fault is None else f"{fault.json_path}: {fault.message[:200]}"

    def resolve(self, base: str, reference: str) -> tuple[str, Any]:
        """A ``$ref`` and the ``$id`` it is relative to."""
        resolved = self.registry.resolver(base).lookup(reference)
        return resolved.resolver._base_uri or base, resolved.contents


# --- instances from schemas -------------------------------------------------------------------------------------------

_SAMPLES = {
    "uri": ["urn:example:thing:1", "https://example.org/a?b=c#d", "urn:uuid:11111111-2222-4333-8444-555555555555"],
    "wss": ["wss://node.example:8765/ws", "wss://127.0.0.1/ws"],
    "date-time": ["2026-07-15T08:00:00Z", "2024-02-29t23:59:59.123456789+05:30", "0001-01-01T00:00:00Z"],
}
_BY_PATTERN = {
    "^(0|": ["1.0.0", "0.10.2-rc.1+build"],
    "^P(?": ["PT1M", "P1DT2H3M4.5S", "P2D"],
    "^[A-Z][A-Z0-9": ["EXECUTOR_FAILED", "X1"],
    "^[A-Z]{3}": ["EUR", "USD"],
    "^[A-Za-z0-9!": ["text/plain", "application/vnd.x+json"],
    "^[A-Za-z0-9_-]+": ["AAAA", "q" * 86],
    "^[a-z0-9]+(": ["code.review", "a-b.c"],
    "^[a-zA-Z0-9][": ["criterion-1", "A"],
    "^[a-z][a-z0-9._:": ["read", "work.execute"],
    "^[a-z][a-z0-9_]*": ["work.started", "mission.created"],
    "^ext": ["ext.acme.billing.invoice_sent", "ext.missionweaveprotocol.identity.session_open"],
    "^sha256": ["sha256:" + "a" * 64, "sha256:" + "0" * 64],
    "^wss": ["wss://node.example:8765/ws"],
    "[^": ["some text"],
}


class Maker:
    """Makes instances that mostly fit a schema, by walking it."""

    def __init__(self, oracle: Oracle, rng: random.Random) -> None:
        self.oracle = oracle
        self.rng = rng

    def make(self, name: str) -> Any:
        """One instance, with a random choice of optional members."""
        schema = self.oracle.schemas[name]
        return self._value(schema, schema["$id"], self.rng.choice((0.0, 0.5, 1.0)), 0)

    def _value(self, schema: Any, base: str, optional: float, depth: int) -> Any:
        if "$ref" in schema:
            base, schema = self.oracle.resolve(base, schema["$ref"])
            return self._value(schema, base, optional, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            return self._object(schema, base, optional, depth)
        if kind == "array":
            return self._array(schema, base, optional, depth)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return self._value(self.rng.choice(schema[word]), base, optional, depth)
        if "allOf" in schema:
            merged: dict[str, Any] = {}
            for part in schema["allOf"]:
                while "$ref" in part:
                    base, part = self.oracle.resolve(base, part["$ref"])
                properties = {**merged.get("properties", {}), **part.get("properties", {})}
                merged = {**merged, **part, **({"properties": properties} if properties else {})}
            return self._value(merged, base, optional, depth)
        return self._scalar(schema, kind)

    def _object(self, schema: Any, base: str, optional: float, depth: int) -> Any:
        if "properties" not in schema:
            additional = schema.get("additionalProperties")
            if isinstance(additional, dict):
                return {"urn:example:extension:1": self._value(additional, base, optional, depth + 1)}
            return self.rng.choice(({}, {"any": [1, {"deep": None}], "signature": "x"}))
        required = schema.get("required", ())
        made = {
            name: self._value(part, base, optional, depth + 1)
            for name, part in schema["properties"].items()
            if name in required or self.rng.random() < optional
        }
        return self._steer(made)

    def _steer(self, made: dict[str, Any]) -> dict[str, Any]:
        """Undo what usually breaks a conditional rule, so that the good branch is seen too."""
        if "kind" in made and "actor" in made and self.rng.random() < 0.7:
            agent = made["actor"].get("type") == "agent"
            for name in ("sessionEpoch", "membershipEpoch", "coordinatorEpoch"):
                if agent:
                    made.setdefault(name, 1)
                elif self.rng.random() < 0.7:
                    made.pop(name, None)
        return made

    def _array(self, schema: Any, base: str, optional: float, depth: int) -> Any:
        count = max(schema.get("minItems", 0), self.rng.choice((0, 1, 1, 2)))
        items: list[Any] = []
        for _ in range(count):
            item = self._value(schema["items"], base, optional, depth + 1)
            if item not in items or not schema.get("uniqueItems"):
                items.append(item)
        return items

    def _scalar(self, schema: Any, kind: Any) -> Any:
        if kind == "boolean":
            return self.rng.random() < 0.5
        if kind == "integer":
            return self.rng.choice((schema.get("minimum", 0), 7, schema.get("maximum", 9)))
        if kind == "number":
            return self.rng.choice((0, 1, 0.5, 12.25))
        if kind == "string":
            pattern = schema.get("pattern", "")
            for start, samples in _BY_PATTERN.items():
                if pattern.startswith(start):
                    return self.rng.choice(samples)
            if schema.get("format") in _SAMPLES:
                return self.rng.choice(_SAMPLES[schema["format"]])
            return self.rng.choice(("some text", "é𝄞", "x" * 20))
        return self.rng.choice((None, 1, "text", [1], {"a": {}}))


# --- mutations --------------------------------------------------------------------------------------------------------

_STRINGS = [
    "",
    " ",
    "\n",
    "\u0085",
    "\ufeff",
    "x",
    "urn:müller:1",
    "/relative",
    "urn:a: 1",
    "urn:a:\u0000",
    "urn:a:%4",
    "urn:a:%zz",
    "example:",
    "http://[::1]:80/x",
    "http://[::1/x",
    "a" * 513,
    "urn:" + "a" * 509,
    "2025-02-29T00:00:00Z",
    "2016-12-31T23:59:60Z",
    "2026-01-01 10:00",
    "2026-01-01T10:00:00-00:00",
    "2026-01-01T24:00:00Z",
    "0000-01-01T00:00:00Z",
    "2026-01-01t10:00:00z",
    "2026-01-01T10:00:00+23:59",
    "2026-01-01T10:00:00",
    "sha256:" + "A" * 64,
    "sha256:" + "a" * 63,
    "agent",
    "human",
    "service",
    "0.2",
    "0.1.0",
    "1.0",
    "P",
    "PT",
    "P1D",
    "eur",
    "ext.acme.name",
    "ext.acme.profile.name",
    "mission.terminate",
    "mission.create",
    "work.accept_result",
    "work.started",
    "AAA=",
    "A",
    "wss://x",
    "ws://x",
    "\ud800",
]
_NUMBERS = [0, 1, -1, 1.0, 1.5, 0.0, -0.0, 2**53 - 1, 2**53, 2**64, 10**400, 1e16, 1e308, float("inf"), True, False]
_OTHERS = [None, [], {}, [[]], {"": 0}, "text", 5, True]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in children:
        yield from _paths(item, (*path, step))


def mutate(value: Any, rng: random.Random) -> Any:
    """A copy of a value with one to three random changes."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changed = _mutate_once(changed, rng)
    return changed


def _other(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(_OTHERS))


def _mutate_once(value: Any, rng: random.Random) -> Any:
    paths = list(_paths(value))
    path = rng.choice(paths)
    if not path:
        return value if rng.random() < 0.9 else _other(rng)
    parent = value
    for step in path[:-1]:
        parent = parent[step]
    _change(parent, path[-1], rng)
    return value


def _change(parent: Any, step: Any, rng: random.Random) -> None:
    old = parent[step]
    action = rng.randrange(8)
    if action == 0 and isinstance(parent, dict):
        del parent[step]
    elif action == 1 and isinstance(parent, dict):
        parent[rng.choice(("x", "signature", "extensions", "\ud800", "Kind", "workItemId", "é"))] = copy.deepcopy(old)
    elif action == 2 and isinstance(old, list):
        old.append(copy.deepcopy(old[0]) if old else _other(rng))
    elif action == 3 and isinstance(old, list):
        old.clear()
    elif action == 4 and isinstance(old, str):
        parent[step] = old + rng.choice(("\n", " ", "é", "\u0000", ".", "x", "-", "Z", "%41", "=", "/"))
    elif action == 5 and isinstance(old, str):
        parent[step] = rng.choice((old.upper(), old.lower(), old[:-1], old[1:], old * 40))
    elif isinstance(old, (int, float)):
        parent[step] = rng.choice(_NUMBERS)
    elif isinstance(old, str) and action != 7:
        parent[step] = rng.choice(_STRINGS)
    else:
        parent[step] = _other(rng)


def text_of(value: Any) -> bytes:
    """JSON text of a mutated value; what JSON cannot spell as a literal is spelled by a number out of range."""
    return json.dumps(value).replace("Infinity", "1e400").encode()
