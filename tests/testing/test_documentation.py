"""The examples of ``mwnode.testing`` run as they stand there, in a suite that is not this one, on two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

from mwnode import testing

CHECKOUT = Path(__file__).resolve().parents[2]


def examples() -> list[str]:
    """Every indented block of the package's docstring that is a test."""
    assert testing.__doc__ is not None
    blocks = re.split(r"\n(?=\S)", testing.__doc__)
    code = ["\n".join(line for line in block.splitlines() if line.startswith("    ")) for block in blocks]
    return [textwrap.dedent(block) for block in code if "def test_" in block]


def test_the_examples_pass_in_a_suite_of_somebody_else(tmp_path: Path) -> None:
    shown = examples()
    names = re.findall(r"def (test_\w+)", "\n".join(shown))
    assert len(names) >= 6
    head = "import pytest\nfrom mwnode.testing import ConnectionLost, assert_refused, assert_state\n\n"
    (tmp_path / "test_examples.py").write_text(head + "\n\n".join(shown))
    # An installed mwnode brings its fixture by entry point; a checkout that is only on the path does not.
    installed = any(point.value == "mwnode.testing" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "mwnode.testing")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            *plugin,
            "-o",
            "asyncio_mode=auto",
            "--import-mode=importlib",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{len(names)} passed" in done.stdout, done.stdout[-2000:]


def test_every_public_name_is_told_of() -> None:
    named = {name: getattr(testing, name) for name in testing.__all__}
    assert [name for name, value in named.items() if callable(value) and not value.__doc__] == []


def test_a_run_of_pytest_that_needs_nothing_of_it_loads_nothing() -> None:
    program = (
        "import pytest, sys; import mwnode.testing;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'aiohttp', 'lmdb', 'nacl', 'msgspec'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"
    assert {*testing._MODULES, "mwnode"} == set(testing.__all__)
