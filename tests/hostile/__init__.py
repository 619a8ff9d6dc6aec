"""Hostile peers against a real node in a process of its own, with figures: `python -m tests.hostile`."""
