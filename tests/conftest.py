"""What every test may use: requirement marks, long runs, and the published protocol bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mwnode import testing
from tests.authority import coverage
from tests.faults import marks
from tests.requirements import REQUIREMENTS, Collector, load_rows

CHECKOUT = Path(__file__).resolve().parent.parent
BUNDLE_VARIABLE = "MWNODE_PROTOCOL_BUNDLE"

# How fast inputs are made tells of the machine and of what else runs on it, not of the code under test.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Nothing is left to chance where a failure would be taken for what was just changed: only --long looks for new inputs.
settings.register_profile("mwnode", settings.get_profile("searching"), derandomize=True, database=None)
settings.load_profile("mwnode")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requirements-report", type=Path, metavar="FILE", help="leave what was proven in this file")
    parser.addoption("--tried", action="store_true", help="print what the core's tests have tried, kind by kind")
    parser.addoption("--long", action="store_true", help="run tests marked long in full, not as a seeded sample")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        settings.load_profile("searching")
    if not config.pluginmanager.hasplugin("mwnode"):
        # In a checkout that is not installed, no entry point has brought the fixtures of mwnode.testing.
        config.pluginmanager.register(testing, "mwnode")
    report = config.getoption("--requirements-report")
    # Under xdist the workers' reports all reach the controller, which has no workerinput.
    if report is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(report=report.absolute()), "requirements-report")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(coverage.Plugin(config), "tried")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the ids of every `req` mark, hand them to the reports, and leave out what only a long run should do."""
    known = {row.id for row in load_rows(REQUIREMENTS)}
    kept, left_out = [], []
    for item in items:
        ids = sorted({str(row_id) for mark in item.iter_markers("req") for row_id in mark.args})
        unknown = [row_id for row_id in ids if row_id not in known]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such requirement row: {', '.join(unknown)}")
        item.user_properties.append(("req", ids))
        marks.mark(item)
        # A long test that asks for `scale` has a sample size of its own; one that does not is all or nothing.
        whole_only = item.get_closest_marker("long") is not None and "scale" not in getattr(item, "fixturenames", ())
        (left_out if whole_only and not config.getoption("--long") else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """`scale(sample, full)`: how many rounds a `long` test does; `full` only under `--long`."""
    in_full = bool(request.config.getoption("--long"))
    return lambda sample, full: full if in_full else sample


@pytest.fixture(scope="session")
def protocol_bundle() -> Path:
    """The published bundle of normative schemas and vectors, which is no part of this checkout.

    Found by MWNODE_PROTOCOL_BUNDLE, else in `../shared/protocol/bundle` beside the checkout.
    """
    named = os.environ.get(BUNDLE_VARIABLE)
    bundle = Path(named) if named else CHECKOUT.parent / "shared" / "protocol" / "bundle"
    if not (bundle / "schemas").is_dir():
        # The bundle is published apart from mwnode, so a checkout alone cannot compare against it.
        pytest.skip(f"no protocol bundle at {bundle}: set {BUNDLE_VARIABLE} to its directory")
    return bundle
