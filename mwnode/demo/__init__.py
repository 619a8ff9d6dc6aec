"""The demonstration: one Mission from order to Approval, another through a SIGKILL, over real processes."""
