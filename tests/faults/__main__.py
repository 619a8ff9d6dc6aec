"""`python -m tests.faults`: run what shows the faults of the reference implementation to be absent, and print the list.

    python -m tests.faults            run, then the list with what became of each
    python -m tests.faults --list     the list only

Exit 0 when every fault is shown absent or says why it has no test; 1 otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from tests.faults.catalogue import FAULTS
from tests.faults.marks import TESTS


def run() -> dict[str, set[str]]:
    """Run every test that is named; by its name in the list, what became of its cases."""
    files = sorted({f"tests/{name.partition('::')[0]}" for fault in FAULTS for name in fault.tests})
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "reference_fault", f"--junit-xml={report}", *files]
        subprocess.run(command, cwd=TESTS.parent, check=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
    became: dict[str, set[str]] = {}
    for case in cases:
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        states = {child.tag for child in case if child.tag in ("failure", "error", "skipped")}
        name = f"{file}.py::{case.get('name', '').partition('[')[0]}"
        became.setdefault(name, set()).update(states or {"passed"})
    return became


def state_of(tests: tuple[str, ...], became: dict[str, set[str]]) -> str:
    """``absent``, or what stands against it."""
    states = [became.get(name, {"not collected"}) for name in tests]
    for against in ("failure", "error", "not collected"):
        if any(against in each for each in states):
            return against.upper()
    return "absent" if any("passed" in each for each in states) else "SKIPPED"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the list without running anything")
    arguments = parser.parse_args()
    became = {} if arguments.list else run()
    states = []
    for fault in FAULTS:
        state = "see why" if fault.reason else "listed" if arguments.list else state_of(fault.tests, became)
        states.append(state)
        print(f"{fault.number:4}  {state:14}{fault.what}")
        for line in fault.tests or (fault.reason,):
            print(f"{'':20}{line}")
    bad = [state for state in states if state.isupper()]
    what = "listed" if arguments.list else "shown absent"
    reasoned = states.count("see why")
    print(
        f"\n{len(FAULTS)} faults: {len(FAULTS) - reasoned - len(bad)} {what}, {reasoned} with a reason, {len(bad)} open"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
