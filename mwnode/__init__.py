"""mwnode: an embedded single-file store and reference node for MissionWeaveProtocol 0.1."""

__version__ = "0.1.0"
