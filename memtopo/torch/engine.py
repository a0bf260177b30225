"""Heaps for engines without a spec: one for each tag and GPU, in a layout of the process that others can look at."""

from __future__ import annotations

import atexit
import os
import re
import threading
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from memtopo.api.heaps import Heap
from memtopo.api.joined import JoinedLayout, join
from memtopo.torch import HeapPool, pool

_ADDRESSES = 4
"""Addresses of each heap, in multiples of the memory of its GPU: addresses cost nothing (fact 9)."""

_GRANULE = 2 << 20
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class Tagged(NamedTuple):
    """Heap of an engine: the tag of its memory, the GPU, its variant, and the name in the layout."""

    tag: str
    device: int
    variant: str
    name: str


class Engine:
    """The layout of this process, whose heaps are made when they are first needed; one for all drop-ins.

    It is named `torch-` and the number of the process, or as `MEMTOPO_ENGINE` says: `memtopo ls`, `show` and `draw`
    find it. It ends with the process.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._resources = ExitStack()
        self._layout: JoinedLayout | None = None
        self.heaps: dict[tuple[str, int, str], Tagged] = {}

    @property
    def name(self) -> str:
        """Name of the layout."""
        return os.environ.get("MEMTOPO_ENGINE") or f"torch-{os.getpid()}"

    def pool(self, tag: str, device: int, variant: str = "") -> HeapPool:
        """Return the pool of the heap with a tag on a GPU. A tag may have several heaps, each a `variant` of it."""
        with self._lock:
            key = tag, device, variant
            if key not in self.heaps:
                self._add(key)
            assert self._layout
            found = pool(self._layout, self.heaps[key].name)
            found.warns = False  # the engine decides what is in its regions
            return found

    def with_tag(self, *tags: str) -> list[tuple[Tagged, Heap]]:
        """Heaps with some tags, in the order in which they were made; without any tag, all heaps."""
        if self._layout is None:
            return []
        chosen = (each for each in self.heaps.values() if not tags or each.tag in tags)
        return [(each, self._layout.heap(each.name)) for each in chosen]

    def close(self) -> None:
        """Take the layout down. All tensors in it have ended."""
        with self._lock:
            self._layout, self.heaps = None, {}
            self._resources.close()

    def _add(self, key: tuple[str, int, str]) -> None:
        tag, device, variant = key
        parts = (_NAME.sub("-", tag).strip("-") or "memory", *([variant] if variant else []), f"gpu{device}")
        name = "-".join(parts) if parts[0][0].isalpha() else f"m-{'-'.join(parts)}"
        while any(each.name == name for each in self.heaps.values()):
            name += "-"
        heaps = {**self.heaps, key: Tagged(tag, device, variant, name)}
        spec = self._spec(heaps)
        if self._layout is None:
            self._layout = self._resources.enter_context(join(spec, "engine", timeout=60.0))
            atexit.register(self.close)
        else:
            self._layout.change(spec)
        self.heaps = heaps

    def _spec(self, heaps: dict[tuple[str, int, str], Tagged]) -> dict[str, Any]:
        """Spec of the layout with some heaps."""
        entries, access = {}, {}
        for _, device, _, name in heaps.values():
            size = torch.cuda.get_device_properties(device).total_memory * _ADDRESSES // _GRANULE
            entries[name] = {"location": f"gpu{device}", "size": f"{size} granules"}
            access[name] = {f"gpu{device}": "rw"}
        return {"memtopo": 1, "name": self.name, "processes": {"engine": {"heaps": entries, "access": access}}}


ENGINE = Engine()
"""The engine of this process."""
