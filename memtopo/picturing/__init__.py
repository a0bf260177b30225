"""From a geometry to its picture. Pure, and linear in what the spec writes: runs are never expanded."""

from __future__ import annotations

from memtopo.geometry import Geometry
from memtopo.machine import Machine
from memtopo.pause import collector_paused
from memtopo.picture import Picture
from memtopo.picturing.memory import memory
from memtopo.picturing.ranges import ranges

__all__ = ["picture"]


def picture(geometry: Geometry, machine: Machine) -> Picture:
    """The picture of a geometry that has passed the rules of this machine."""
    marks: dict[str, str] = {}
    with collector_paused():
        return Picture(tuple(ranges(geometry, marks)), tuple(memory(geometry, machine, marks)))
