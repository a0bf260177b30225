"""A driver that makes no call: it answers each as a driver would that refuses nothing, so that a plan can be listed.

It has no rules and no memory; the simulator has both. Handles are numbers in the order in which they are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha512
from itertools import count
from typing import Any

from memtopo.driver.functions import function
from memtopo.driver.types import ADDRESS_BLOCK, HandleType
from memtopo.driver.wrappers import METHODS, EveryCall, defaults, parameters

_FIRST_RESERVED = 1 << 44
_FIRST_ALLOCATED = 1 << 46
_ALLOCATED = ("mem_alloc", "mem_alloc_managed", "mem_host_alloc", "mem_alloc_from_pool_async")
_UNKNOWN_SIZE = 1 << 40
_ANSWERS = {"event_query": True, "stream_query": True, "mem_get_info": (0, 0)}


class DryDriver(EveryCall):
    """A driver that makes no call. `name` distinguishes its shareable handles from those of others.

    Descriptors that it exports are open files of this process, the caller's to close as any.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._numbers = count(1)
        self._next = {"reserved": _FIRST_RESERVED, "allocated": _FIRST_ALLOCATED}
        self._imported: dict[int, int] = {}
        self._pool_files: dict[int, int] = {}
        self._special: dict[str, Callable[[dict[str, Any]], Any]] = {
            "mem_address_reserve": self._reserved,
            **dict.fromkeys(_ALLOCATED, self._allocated),
            "mem_pool_export_to_shareable_handle": self._exported_pool,
            "mem_pool_import_from_shareable_handle": self._imported_pool,
            "import_external_memory": self._taken,
            "import_external_semaphore": self._taken,
        }

    def close(self) -> None:
        """Close the files that stand for exported pools."""
        for fd in self._pool_files.values():
            os.close(fd)
        self._pool_files.clear()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in METHODS:
            raise AttributeError(f"{type(self).__name__} has no {method}")
        names, omitted = parameters(method), defaults(method)

        def answer(*args: Any, **kwargs: Any) -> Any:
            return self._answer(method, {**omitted, **dict(zip(names, args, strict=False)), **kwargs})

        setattr(self, method, answer)
        return answer

    def _answer(self, method: str, given: dict[str, Any]) -> Any:
        if method in _ANSWERS:
            return _ANSWERS[method]
        if special := self._special.get(method):
            return special(given)
        makes = function(method).makes
        if makes in ("buffer", "allocation"):  # opened or imported: of a size that its caller knows
            return self._placed("allocated", _UNKNOWN_SIZE, ADDRESS_BLOCK)
        if makes == "shared" and given.get("kind", HandleType.FD) == HandleType.FD:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if makes in ("shared", "secret"):
            return sha512(f"{self._name} {method} {sorted(given.items(), key=str)}".encode()).digest()
        return next(self._numbers) if makes else None

    def _allocated(self, given: dict[str, Any]) -> int:
        return self._placed("allocated", given["size"], ADDRESS_BLOCK)

    def _reserved(self, given: dict[str, Any]) -> int:
        hint: int = given["address"]
        return hint or self._placed("reserved", given["size"], max(given["alignment"], ADDRESS_BLOCK))

    def _placed(self, where: str, size: int, alignment: int) -> int:
        address = -(-self._next[where] // alignment) * alignment
        self._next[where] = address + size
        return address

    def _exported_pool(self, given: dict[str, Any]) -> int:
        """A descriptor of the file that stands for a pool: an importer gets the same pool each time (fact 82)."""
        pool = given["pool"]
        if pool not in self._pool_files:
            self._pool_files[pool] = os.memfd_create("pool")
        return os.dup(self._pool_files[pool])

    def _imported_pool(self, given: dict[str, Any]) -> int:
        return self._imported.setdefault(os.fstat(given["shared"]).st_ino, next(self._numbers))

    def _taken(self, given: dict[str, Any]) -> int:
        """A number for an external object, whose descriptor is the driver's from now on."""
        os.close(given["fd"])
        return next(self._numbers)
