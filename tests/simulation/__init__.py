"""Whole Missions in one process, under a virtual clock and network, with seeded faults."""
