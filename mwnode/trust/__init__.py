"""Who said it, under which key, and when it was first believed. Pure."""
