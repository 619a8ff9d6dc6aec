"""The vocabulary of MissionWeaveProtocol 0.1. Pure: it imports nothing else of mwnode."""
