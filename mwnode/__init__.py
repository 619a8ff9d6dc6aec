"""mwnode: an embedded single-file store and reference node for MissionWeaveProtocol 0.1."""
