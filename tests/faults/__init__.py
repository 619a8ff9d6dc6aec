"""What the reference implementation gets wrong, shown not to happen here: the list, and the tests written for it."""
