"""Handles between processes: what is offered, the packets that carry it, where sockets stand, and the importer's end.

`docs/protocol.md` has the packets for those who write another client.
"""

from memtopo.exchange.claiming import Claim, claim
from memtopo.exchange.client import Client, connect
from memtopo.exchange.faults import ExchangeError, NoLayout
from memtopo.exchange.listing import LONGEST_SOURCE
from memtopo.exchange.offers import Handle, Kind, Offer, Secret, Shelf, Via
from memtopo.exchange.places import Place, place
from memtopo.exchange.status import Importer, Looked, Notice, Released, Status, Taken
from memtopo.exchange.surveying import Entry, Survey, survey

__all__ = [
    "LONGEST_SOURCE",
    "Claim",
    "Client",
    "Entry",
    "ExchangeError",
    "Handle",
    "Importer",
    "Kind",
    "Looked",
    "NoLayout",
    "Notice",
    "Offer",
    "Place",
    "Released",
    "Secret",
    "Shelf",
    "Status",
    "Survey",
    "Taken",
    "Via",
    "claim",
    "connect",
    "place",
    "survey",
]
