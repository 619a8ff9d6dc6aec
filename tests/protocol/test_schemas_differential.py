"""Our decoders against the normative schemas: they judge every vector and thousands of mutations alike."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwnode.protocol import frames, strict_json
from mwnode.protocol.errors import UnsupportedVersion
from mwnode.protocol.schemas import DOCUMENT_TYPES
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from tests.protocol.oracle import Maker, Oracle, mutate, text_of

NAMES = (*DOCUMENT_TYPES, "websocket-frame")


@pytest.fixture(scope="session")
def oracle(protocol_bundle: Path) -> Oracle:
    return Oracle(protocol_bundle)


def verdict(name: str, raw: bytes) -> str | None:
    """Why our decoder refuses, or None."""
    try:
        if name == "websocket-frame":
            frames.check_frame(raw)
        else:
            strict_json.decode(raw, DOCUMENT_TYPES[name])
    except (SchemaFault, UnsupportedVersion) as fault:
        return str(fault)
    return None


def vectors(bundle: Path) -> list[tuple[str, Path]]:
    cases = json.loads((bundle / "conformance/manifest.json").read_bytes())
    return [(Path(case["schema"]).name.removesuffix(".schema.json"), bundle / case["instance"]) for case in cases]


@pytest.mark.req("R-21-01", "R-2-01")
def test_all_22_schemas_load_by_id_and_resolve_offline(oracle: Oracle) -> None:
    assert len(oracle.schemas) == 22
    assert set(oracle.schemas) == {*NAMES, "common"}
    for name, schema in oracle.schemas.items():
        assert schema["$id"].endswith(f"/{name}.schema.json")
        for reference in references(schema):
            oracle.resolve(schema["$id"], reference)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for item in value.values() for found in references(item)]
    return [found for item in value for found in references(item)] if isinstance(value, list) else []


@pytest.mark.req("R-2-19", "R-22-01")
def test_every_structural_vector_is_judged_alike(oracle: Oracle, protocol_bundle: Path) -> None:
    for name, path in vectors(protocol_bundle):
        raw = path.read_bytes()
        assert (verdict(name, raw) is None) == oracle.accepts(name, json.loads(raw)), path.name


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.req("R-2-13", "R-2-19", "R-21-02")
def test_no_mutation_is_judged_differently(
    oracle: Oracle, protocol_bundle: Path, scale: Callable[[int, int], int]
) -> None:
    seed = 20260715
    rng = random.Random(seed)
    maker = Maker(oracle, rng)
    bases: dict[str, list[Any]] = {name: [] for name in NAMES}
    for name, path in vectors(protocol_bundle):
        bases[name].append(json.loads(path.read_bytes()))
    accepted: Counter[str] = Counter()
    rounds = scale(150, 2500)
    for name in NAMES:
        for number in range(rounds):
            base = maker.make(name) if number % 3 else rng.choice(bases[name])
            value = base if number % 5 == 0 else mutate(base, rng)
            raw = text_of(value)
            wanted = oracle.accepts(name, json.loads(raw))
            refusal = verdict(name, raw)
            accepted[name] += wanted
            assert (refusal is None) == wanted, (
                f"seed {seed}, {name} {number}: schema says {oracle.reason(name, json.loads(raw))}, we say {refusal}\n"
                f"{raw.decode()}"
            )
    # A test in which nothing is ever accepted, or everything, would compare nothing.
    assert all(rounds * 0.03 < accepted[name] < rounds * 0.9 for name in NAMES), accepted


@pytest.mark.req("R-2-19")
def test_a_parse_fault_never_hides_a_schema_verdict(oracle: Oracle) -> None:
    with pytest.raises(JsonFault):
        strict_json.decode(b'{"a":1,"a":2}', DOCUMENT_TYPES["mission"])
