"""Specs with exports and imports."""

from __future__ import annotations

from memtopo.geometry import Geometry
from tests.helpers.specs import clean_geometry

OWN = """
  ranges: {r: {size: 10MiB}}
  chunks: {w: {location: gpu0, size: 2MiB, count: 4, handles: fd}, n: {location: gpu1, size: 2MiB}}
  map: {r: [w, n]}
  access: {r: {gpu0: rw}}
  buffers: {b: {location: [gpu0, gpu1], size: 64KiB, count: 3}}
  events: {e: {device: gpu1}}
"""
EXPORTED = "exports: {w: {chunk: w, via: fd}, b: {buffer: b, via: ipc}, e: {event: e, via: ipc}}"
SERVER = f"processes:\n server:{OWN}  {EXPORTED}\n"
VIEW = "ranges: {v: {size: 8MiB}}, map: {v: x}, access: {v: {gpu1: r}}"


def reader(entry: str, more: str = VIEW, name: str = "reader") -> str:
    """Spec of a server and a process that imports `x`."""
    return f"{SERVER} {name}: {{imports: {{x: {entry}}}, {more}}}\n"


def member(text: str, label: str) -> Geometry:
    return clean_geometry(text).processes[label]
