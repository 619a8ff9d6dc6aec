"""The test-suite of mwnode; a package, so that its tools run as `python -m tests.NAME`."""
