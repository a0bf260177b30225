"""Who provides what a spec takes from outside: sockets by name, programs that are started, and what is played.

A spec only names them. What is behind a name is told beside it, by `--with` or by `bind`.
"""

from memtopo.producers.binding import Bound, holders, resolve, unused
from memtopo.producers.producing import Producers, producers
from memtopo.producers.program import ProducerFailed

__all__ = ["Bound", "ProducerFailed", "Producers", "holders", "producers", "resolve", "unused"]
