"""The store: one file that holds the Group logs, what follows from them, and the Artifacts."""
