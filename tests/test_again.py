"""Which failures are tried once more, and that one which stays is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST, refusal
from tests.patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).resolve().parent.parent
FLAKY = """\
from pathlib import Path

def test_it():
    tried = Path(__file__).with_name("tried")
    before = tried.exists()
    tried.touch()
    assert before and {holds}
"""


def test_only_few_failures_and_only_those_of_the_real_world_are_tried_again() -> None:
    assert refusal(["tests/gateway/test_http.py::test_views"]) is None
    assert refusal([]) is not None
    assert "test_jcs" in str(refusal(["tests/cli/test_serve.py::a", "tests/protocol/test_jcs.py::b"]))
    assert "neither" in str(refusal(["tests/test_home.py::a"]))
    assert "no accident" in str(refusal([f"tests/cli/test_serve.py::{number}" for number in range(MOST + 1)]))


@pytest.mark.parametrize("holds", [True, False])
def test_what_fails_again_has_failed_and_what_passes_is_told_of(tmp_path: Path, holds: bool) -> None:
    test = tmp_path / "tests" / "cli" / "test_it.py"
    test.parent.mkdir(parents=True)
    test.write_text(FLAKY.format(holds=holds))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": "--import-mode=importlib"}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    assert run("-m", "pytest", "-q", "--rootdir", str(tmp_path), "tests").returncode == 1
    failed = json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text())
    assert list(failed) == ["tests/cli/test_it.py::test_it"]
    again = run(str(CHECKOUT / "tests" / "again.py"))
    assert again.returncode == (0 if holds else 1), again.stdout
    assert ("PASSED ONLY AT ITS SECOND ATTEMPT" in again.stdout) is holds
    assert "tests/cli/test_it.py::test_it" in again.stdout
