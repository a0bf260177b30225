"""Who provides what a spec takes from outside: sockets by name, programs that are started, and what is played.

A spec only names them. What is behind a name is told beside it, by `--with` or by `bind`.
"""

from memtopo.sharing.producers.binding import Bound, holders, resolve, unused
from memtopo.sharing.producers.producing import Producers, producers
from memtopo.sharing.producers.program import ProducerFailed

__all__ = ["Bound", "ProducerFailed", "Producers", "holders", "producers", "resolve", "unused"]
