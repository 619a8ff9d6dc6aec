"""Processes killed at random instants, on real files."""
