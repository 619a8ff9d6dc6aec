"""``python -m tests.simulation --seeds 1000``: run seeds; replay and shorten one that fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from tests.simulation.faults import schedule
from tests.simulation.homes import Template
from tests.simulation.shrink import numbers_of, shrink
from tests.simulation.world import Outcome, scratch, simulate


def main() -> int:
    """Exit 0 when no seed found anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, metavar="N", help="how many seeds to run")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="the first of them")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no further seed after so long")
    parser.add_argument("--seed", type=int, metavar="N", help="run only this one, and print what happens")
    parser.add_argument("--only", metavar="N,N", help="with --seed: only these of its faults, by number")
    parser.add_argument("--shrink", action="store_true", help="leave out faults for as long as it still fails")
    parser.add_argument("--quiet", action="store_true", help="with --seed: print the outcome alone")
    arguments = parser.parse_args()
    logging.getLogger("mwnode").addHandler(logging.NullHandler())
    logging.getLogger("mwnode").propagate = False
    with scratch() as place:
        template = Template(place)
        if arguments.seed is not None:
            return _one(template, arguments)
        return _many(template, arguments)


def _one(template: Template, arguments: argparse.Namespace) -> int:
    faults = schedule(arguments.seed)
    if arguments.only is not None:
        faults = [faults[int(number)] for number in arguments.only.split(",") if number]
    outcome = simulate(arguments.seed, template, faults=faults, out=None if arguments.quiet else print)
    _tell(outcome)
    if outcome.violation is not None and arguments.shrink:
        _shortened(template, outcome)
    return outcome.violation is not None


def _many(template: Template, arguments: argparse.Namespace) -> int:
    began, failed, events, ended, ran = time.monotonic(), [], 0, [], 0
    injected: Counter[str] = Counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if arguments.minutes is not None and time.monotonic() - began > 60 * arguments.minutes:
            break
        outcome = simulate(seed, template)
        ran += 1
        events += outcome.events
        injected.update(outcome.injected)
        if ran % 25 == 0:
            print(f"... through seed {seed}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        ended += outcome.states
        if outcome.violation is not None:
            failed.append(seed)
            _tell(outcome)
            if arguments.shrink:
                _shortened(template, outcome)
    seconds = time.monotonic() - began
    for what, count in sorted(injected.items()):
        print(f"{count:9}  {what}")
    states = {state: ended.count(state) for state in sorted(set(ended))}
    print(f"{ran} seeds, {events} Events, Missions {states}, {seconds:.0f} s; failed: {failed or 'none'}")
    return bool(failed)


def _tell(outcome: Outcome) -> None:
    how = outcome.violation or "nothing found"
    print(
        f"seed {outcome.seed}: {how} ({len(outcome.faults)} faults, {outcome.seconds:.1f} s, {outcome.events} Events, "
        f"{outcome.commits} commits, Missions {outcome.states}, trace {outcome.trace_hash})",
        flush=True,
    )
    if outcome.cause is not None:
        traceback.print_exception(outcome.cause, file=sys.stdout)


def _shortened(template: Template, outcome: Outcome) -> None:
    kept = shrink(outcome, template)
    for fault in kept.faults:
        print(f"    {fault.text()}")
    numbers = numbers_of(kept)
    print(f"  {kept.violation}")
    print(f"  python -m tests.simulation --seed {outcome.seed} --only {numbers}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
