"""How others reach the node: WebSocket for Agents, HTTP for humans, services and Artifacts."""
