"""Small faults put into the core, one at a time: what no test notices is a rule that nothing holds."""
