"""The other end of the gateway: sign, send, subscribe, replay, reconnect."""

from mwnode.client.client import Client
from mwnode.client.errors import ChallengeRefused, ClientError, ConnectionLost, Unreachable
from mwnode.client.http import HttpClient

__all__ = ["ChallengeRefused", "Client", "ClientError", "ConnectionLost", "HttpClient", "Unreachable"]
