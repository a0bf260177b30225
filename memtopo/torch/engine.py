"""Heaps for engines without a spec: one for each tag and GPU, in a layout of the process that others can look at."""

from __future__ import annotations

import atexit
import os
import re
import threading
from contextlib import ExitStack
from itertools import count
from typing import NamedTuple

import torch

from memtopo.api.heaps import Heap
from memtopo.api.joined import JoinedLayout, join
from memtopo.torch import HeapPool, pool

_ADDRESSES = 4
"""Addresses of each heap, in multiples of the memory of its GPU: addresses cost nothing (fact 9)."""

_GRANULE = 2 << 20
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class HeapKey(NamedTuple):
    """Drop-in that uses a heap, the tag of its memory, the GPU, and the variant where a tag has several heaps."""

    owner: str
    tag: str
    device: int
    variant: str = ""


class Engine:
    """The layout of this process, whose heaps are made when they are first needed; one for all drop-ins.

    It is named `torch-` and the number of the process, or as `MEMTOPO_ENGINE` says: `memtopo ls`, `show` and `draw`
    find it. It ends with the process.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._resources = ExitStack()
        self._layout: JoinedLayout | None = None
        self._names: dict[HeapKey, str] = {}

    @property
    def name(self) -> str:
        """Name of the layout."""
        return os.environ.get("MEMTOPO_ENGINE") or f"torch-{os.getpid()}"

    def pool(self, owner: str, tag: str, device: int, variant: str = "") -> HeapPool:
        """Return the pool of the heap with a key."""
        key = HeapKey(owner, tag, device, variant)
        with self._lock:
            if key not in self._names:
                self._add(key)
            assert self._layout
            found = pool(self._layout, self._names[key])
            found.warns = False  # the engine decides what is in its regions
            return found

    def heaps(self, owner: str) -> list[tuple[HeapKey, Heap]]:
        """Heaps of a drop-in, in the order in which they were made."""
        with self._lock:
            layout, names = self._layout, self._names
        return [(key, layout.heap(name)) for key, name in names.items() if layout and key.owner == owner]

    def close(self) -> None:
        """Take the layout down. All tensors in it have ended."""
        with self._lock:
            self._layout, self._names = None, {}
            self._resources.close()

    def _add(self, key: HeapKey) -> None:
        names = {**self._names, key: self._unused_name(key)}
        entries, access = {}, {}
        for each, name in names.items():
            gpu = f"gpu{each.device}"
            size = torch.cuda.get_device_properties(each.device).total_memory * _ADDRESSES // _GRANULE
            entries[name] = {"location": gpu, "size": f"{size} granules"}
            access[name] = {gpu: "rw"}
        processes = {"engine": {"heaps": entries, "access": access}}
        spec = {"memtopo": 1, "name": self.name, "processes": processes}
        if self._layout is None:
            self._layout = self._resources.enter_context(join(spec, "engine", timeout=60.0))
            atexit.register(self.close)
        else:
            self._layout.change(spec)
        self._names = names

    def _unused_name(self, key: HeapKey) -> str:
        """Name of a new heap in the layout, from its key."""
        tag = _NOT_IN_NAMES.sub("-", key.tag).strip("-") or "memory"
        if not tag[0].isalpha():
            tag = f"m-{tag}"
        name = "-".join(filter(None, (tag, key.variant, f"gpu{key.device}")))
        numbered = (f"{name}-{number}" for number in count(2))
        while name in self._names.values():
            name = next(numbered)
        return name


ENGINE = Engine()
"""The engine of this process."""
