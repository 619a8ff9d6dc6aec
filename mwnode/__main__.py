"""`python -m mwnode`: the same as `mwnode`, where no console script is on the path."""

from mwnode.cli import main

main()
