"""Serving what another API made to memtopo's layouts: for programs that are its producers."""

from memtopo.sharing.serving.given import ExternalMemory, Given, GivenShelf, Semaphore
from memtopo.sharing.serving.server import Serving, serve

__all__ = ["ExternalMemory", "Given", "GivenShelf", "Semaphore", "Serving", "serve"]
