"""`python -m tests.requirements --report`: the page that tells, rule by rule, where it is enforced and what proves it.

Where a rule is enforced is read off the product's own words: the comments and docstrings that name it. What proves it
is read off a run of the suite. Nothing is claimed here that neither says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.requirements import Collector, Row

PRODUCT: Final = Path(__file__).resolve().parent.parent / "mwnode"
SHOWN: Final = 3
"""Places and tests that are named of each; the others are counted."""
_ID: Final = re.compile(r"R-[0-9]+(?:\.[0-9]+)?-[0-9]+")
_RANGE: Final = re.compile(r"(R-[0-9]+(?:\.[0-9]+)?-)([0-9]+) to (?:R-[0-9]+(?:\.[0-9]+)?-)?([0-9]+)")


@dataclass(frozen=True)
class Topic:
    """One of the eight things whose enforcement tests have to demonstrate (R-22-04), by the rules that say it."""

    name: str
    rules: tuple[str, ...]


def _section(section: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"R-{section}-{number:02}" for number in range(first, last + 1))


TOPICS: Final = (
    Topic("Mission transitions", _section("7.1", 7, 24)),
    Topic("WorkItem transitions", _section("10.2", 3, 42)),
    Topic("replay", ("R-16-06", "R-16-59", "R-19-33")),
    Topic("deduplication", ("R-16-02", "R-16-52", "R-19-04")),
    Topic("optimistic concurrency", ("R-10.2-43", "R-19-21")),
    Topic("fencing", ("R-6.3-06", "R-7.2-01", "R-10.2-08")),
    Topic("authorization", ("R-9.1-01", "R-19-14")),
    Topic("Message non-authority", ("R-9-09", "R-9-10")),
)


def places(product: Path = PRODUCT) -> dict[str, list[str]]:
    """Of each rule, where the product names it, as ``package/module.py:line``, in order."""
    found: dict[str, list[str]] = {}
    for module in sorted(product.rglob("*.py")):
        name = module.relative_to(product.parent).as_posix()
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1):
            for row_id in sorted(_named(line)):
                found.setdefault(row_id, []).append(f"{name}:{number}")
    return found


def _named(line: str) -> set[str]:
    named = set(_ID.findall(line))
    for prefix, first, last in _RANGE.findall(line):
        named |= {f"{prefix}{number:0{len(first)}}" for number in range(int(first), int(last) + 1)}
    return named


def page(rows: Sequence[Row], found: Collector, where: Mapping[str, Sequence[str]]) -> str:
    """The whole page, as Markdown."""
    proven = found.proven()
    lines = ["# What is proven of MissionWeaveProtocol 0.1", "", *_statement(rows, found, proven)]
    lines += ["", "## The eight topics of section 22", ""]
    lines += ["| topic | rules proven | passing tests | for instance |", "|---|---|---|---|"]
    lines += [_topic(topic, found, proven) for topic in TOPICS]
    for section in dict.fromkeys(section_of(row.id) for row in rows):
        lines += ["", f"## Section {section}", "", "| rule | | what it says | enforced in | proven by |"]
        lines.append("|---|---|---|---|---|")
        lines += [_row(row, found, proven, where) for row in rows if section_of(row.id) == section]
    return "\n".join(lines) + "\n"


def section_of(row_id: str) -> str:
    """The section of the protocol that a rule stands in: ``10.2`` of ``R-10.2-03``."""
    return row_id.split("-")[1]


def _statement(rows: Sequence[Row], found: Collector, proven: set[str]) -> list[str]:
    """What may be said, and what may not (R-22-10)."""
    binding = [row for row in rows if row.level.startswith("MUST")]
    missing = [row for row in binding if row.id not in proven]
    others = [row for row in rows if not row.level.startswith("MUST")]
    lines = [
        f"Of {len(binding)} rules that bind (MUST, MUST NOT) {len(binding) - len(missing)} are proven: at least one "
        "test that names the rule passed, and none that names it failed. Of "
        f"{len(others)} others (SHOULD, MAY) {sum(row.id in proven for row in others)}.",
        "",
        "Many rules are kept by how things are built rather than at one place; the code then names them nowhere.",
        "",
        f"The run behind this page: {found.outcomes['passed']} tests passed, {found.outcomes['failed']} failed, "
        f"{found.outcomes['skipped']} were skipped.",
    ]
    if missing:
        lines += ["", "Not proven, so nothing is claimed about:", ""]
        lines += [f"* {row.id} ({row.level}): {row.requirement}" for row in missing]
    return lines


def _topic(topic: Topic, found: Collector, proven: set[str]) -> str:
    done = [rule for rule in topic.rules if rule in proven]
    tests = sorted({test for rule in done for test in found.passed[rule]})
    example = f"`{tests[0]}`" if tests else "**nothing: not demonstrated**"
    return f"| {topic.name} | {len(done)} of {len(topic.rules)} | {len(tests)} | {example} |"


def _row(row: Row, found: Collector, proven: set[str], where: Mapping[str, Sequence[str]]) -> str:
    tests = sorted(found.passed.get(row.id, ()))
    failed = sorted(found.failed.get(row.id, ()))
    proof = _some(tests) if row.id in proven else "**not proven**"
    if failed:
        proof += f"; failed: {_some(failed)}"
    at = _some(where.get(row.id, ())) or "no place names it"
    text = row.requirement.replace("|", "\\|")
    return f"| {row.id} | {row.level} | {text} | {at} | {proof} |"


def _some(names: Iterable[str]) -> str:
    given = list(names)
    more = f", and {len(given) - SHOWN} more" if len(given) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in given[:SHOWN]) + more


__all__ = ["TOPICS", "page", "places", "section_of"]
