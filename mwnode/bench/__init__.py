"""Figures on this machine, each beside the floor that was measured in the same run.

Absolute times say more about the machine than about the node; the ratio to the floor is what to compare.
"""
