"""Runs a published bundle of vectors against this implementation."""

from __future__ import annotations

from mwnode.conformance.report import Mismatch, Report, Tally
from mwnode.conformance.runner import run

__all__ = ["Mismatch", "Report", "Tally", "run"]
