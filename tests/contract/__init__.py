"""The contract that every store adapter keeps, and an adapter in memory that is held to it."""
