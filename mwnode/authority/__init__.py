"""The rules: pure functions from state and Command to Events. No I/O, no clock, no randomness but what is passed in."""
