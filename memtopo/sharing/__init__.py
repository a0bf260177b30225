"""Sharing of handles between processes: offers, packets, endpoints of sockets, and the client of a holder.

`docs/protocol.md` describes the packets for other clients.
"""

from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.client import LONGEST_SOURCE, Client, connect
from memtopo.sharing.endpoints import Endpoint, endpoint
from memtopo.sharing.errors import ExchangeError, NoLayout
from memtopo.sharing.offers import ExportProvider, Handle, Kind, Offer, Secret, Via
from memtopo.sharing.status import Importer, Looked, Notice, Released, Status, Taken
from memtopo.sharing.surveys import Entry, Survey, survey

__all__ = [
    "LONGEST_SOURCE",
    "Claim",
    "Client",
    "Endpoint",
    "Entry",
    "ExchangeError",
    "ExportProvider",
    "Handle",
    "Importer",
    "Kind",
    "Looked",
    "NoLayout",
    "Notice",
    "Offer",
    "Released",
    "Secret",
    "Status",
    "Survey",
    "Taken",
    "Via",
    "claim",
    "connect",
    "endpoint",
    "survey",
]
