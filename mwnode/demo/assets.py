"""Where the demonstration's plans, sources and executors are."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def assets() -> Path:
    """The folder that holds `plans/`, `project/` and `executors/`.

    A wheel carries them inside the package; a checkout has them in `fixtures/`, and only there.
    """
    packed = _HERE / "assets"
    return packed if packed.is_dir() else _HERE.parent.parent / "fixtures"
