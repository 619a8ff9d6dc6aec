"""`python -m tests.protocol.fuzz --seconds N`: the ingress under a fuzzer; exit status 0 when nothing gets through.

Where `atheris` can be imported (`pip install atheris`), it looks for inputs that reach new code. Elsewhere seeded
damage to good documents is tried. Either way every input must lead to a document, a verdict or a typed fault within
seconds, and the fast way of reading must answer as the exact one does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

SECONDS_MAX = 5
"""Processor time that libFuzzer allows one input, in seconds."""
BYTES_MAX = 64 * 1024
MEMORY_MAX = 1024
"""MiB."""

SEARCH = "search"

engine: ModuleType | None = None
with contextlib.suppress(ImportError):
    engine = importlib.import_module("atheris")

with contextlib.nullcontext() if engine is None else engine.instrument_imports(include=["mwnode"]):
    from tests.trust import makers
    from tests.trust import test_ingress_fuzz as target
    from tests.trust.test_plain_reading import agree


def one_input(data: bytes) -> None:
    """The first byte says which door the rest comes to."""
    if not data:
        return
    door, raw = data[0] % (len(makers.KINDS) + 1), data[1:]
    if door == len(makers.KINDS):
        target.ingress(raw)
    else:
        target.judge(raw, makers.KINDS[door])
        agree(raw, makers.KINDS[door])


def good_inputs() -> list[bytes]:
    """One good input for each door, and each frame that a client may send."""
    documents = [bytes([makers.KINDS.index(kind)]) + raw for raw, kind in target.DOCUMENTS]
    return documents + [bytes([len(makers.KINDS)]) + raw for raw in target.SEEDS]


def guided(seconds: int) -> int:
    """Let atheris search, in a process of its own because it ends the one that it is in; that one's exit status."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        corpus = Path(directory) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(good_inputs()):
            (corpus / f"good-{number}").write_bytes(data)
        tokens = Path(directory) / "tokens"
        quoted = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.TOKENS if len(token) < 60)
        tokens.write_text("".join(f'"{token}"\n' for token in quoted))
        options = {
            "max_total_time": seconds,
            "max_len": BYTES_MAX,
            "rss_limit_mb": MEMORY_MAX,
            "timeout": SECONDS_MAX * 4,
            "dict": tokens,
            "artifact_prefix": f"{tempfile.gettempdir()}/got-through-",
        }
        flags = [f"-{name}={value}" for name, value in options.items()]
        return subprocess.run([sys.executable, "-m", "tests.protocol.fuzz", SEARCH, *flags, str(corpus)]).returncode


def search() -> None:
    """The process in which atheris searches."""
    assert engine is not None
    engine.Setup([sys.argv[0], *sys.argv[2:]], one_input)
    engine.Fuzz()


def unguided(seconds: int, seed: int) -> int:
    """Damage good inputs until the time is over; how many were tried."""
    rng = random.Random(seed)
    good = good_inputs()
    until = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < until:
        data = target.mangle(rng.choice(good), rng)
        started = time.thread_time()
        try:
            one_input(data)
        except BaseException:
            print(f"seed {seed}, input {tried}: {data!r}", file=sys.stderr)
            raise
        assert time.thread_time() - started < SECONDS_MAX, f"seed {seed}, input {tried} took too long: {data!r}"
        tried += 1
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=17, help="of the damage, where atheris is not there")
    parser.add_argument("--unguided", action="store_true", help="do not use atheris even where it is there")
    chosen = parser.parse_args()
    if engine is not None and not chosen.unguided:
        sys.exit(guided(chosen.seconds))
    print(f"{unguided(chosen.seconds, chosen.seed)} inputs, none got through")


if __name__ == "__main__":
    search() if sys.argv[1:2] == [SEARCH] else main()
