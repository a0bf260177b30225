"""The ledger: an account of what is open, kept apart from the lists of the code that opened it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from msgspec import Struct

from memtopo.driver import batches
from memtopo.driver.batches import BatchDriver
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call, Forwarder, parameters

Account = dict[int, int]


class Opens(Struct, frozen=True):
    """A call that opens something, by a key: its result, or the argument `key`.

    With `size` the account has the size of each key, from this argument; without, the number of references to it.
    """

    account: str
    key: str | None = None
    size: str | None = None


class Closes(Struct, frozen=True):
    """A call that closes what its first argument names, or all that begins in its range: an address and a size."""

    account: str
    in_range: bool = False


# Calls that open or close something; a call that does neither needs no line.
CALLS: dict[str, Opens | Closes] = {
    "mem_address_reserve": Opens("reservations", size="size"),
    "mem_address_free": Closes("reservations"),
    "mem_create": Opens("handles"),
    "mem_retain_allocation_handle": Opens("handles"),
    "mem_import_from_shareable_handle": Opens("handles"),
    "mem_release": Closes("handles"),
    "mem_map": Opens("mappings", key="address", size="size"),
    "mem_unmap": Closes("mappings", in_range=True),
    "multicast_create": Opens("handles"),
    "multicast_bind_mem": Opens("bindings", key="handle"),
    "multicast_bind_addr": Opens("bindings", key="handle"),
    "multicast_unbind": Closes("bindings"),
    "device_primary_ctx_retain": Opens("contexts", key="device"),
    "device_primary_ctx_release": Closes("contexts"),
    "mem_alloc": Opens("allocations", size="size"),
    "mem_alloc_managed": Opens("allocations", size="size"),
    "external_memory_get_mapped_buffer": Opens("allocations", size="size"),
    "mem_pool_create": Opens("pools"),
    "mem_pool_import_from_shareable_handle": Opens("pools"),
    "mem_pool_destroy": Closes("pools"),
    "mem_alloc_from_pool_async": Opens("allocations", size="size"),
    "mem_pool_import_pointer": Opens("allocations"),
    "mem_free": Closes("allocations"),
    "mem_free_async": Closes("allocations"),
    "mem_host_alloc": Opens("pinned", size="size"),
    "mem_free_host": Closes("pinned"),
    "mem_host_register": Opens("registered", key="address", size="size"),
    "mem_host_unregister": Closes("registered"),
    "ipc_open_mem_handle": Opens("opened"),
    "ipc_close_mem_handle": Closes("opened"),
    "event_create": Opens("events"),
    "ipc_open_event_handle": Opens("events"),
    "event_destroy": Closes("events"),
    "module_load_data": Opens("modules"),
    "module_unload": Closes("modules"),
    "import_external_memory": Opens("external"),
    "destroy_external_memory": Closes("external"),
    "import_external_semaphore": Opens("semaphores"),
    "destroy_external_semaphore": Closes("semaphores"),
    "stream_create": Opens("streams"),
    "stream_destroy": Closes("streams"),
}

_COMMON = ("reservations", "handles", "mappings", "contexts")
"""Accounts that are counted from the beginning on; any other one from its first entry on."""

_ACCOUNTS = tuple(dict.fromkeys(entry.account for entry in CALLS.values()))
_SIZED = {entry.account for entry in CALLS.values() if isinstance(entry, Opens) and entry.size}


class Ledger(Forwarder, BatchDriver):
    """A driver that forwards every call to another one and notes what each successful call opened or closed.

    `accounts` has sizes in bytes by address for reservations, mappings, page-locked and registered host memory and
    allocations (managed ones and buffers of external memory among them), and references by key for the rest: retains by
    device for contexts, openings by address for opened memory. File descriptors of exported chunks are the caller's and
    not the driver's, so that they are not counted.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self.accounts: dict[str, Account] = {name: {} for name in _ACCOUNTS}
        self._used = set(_COMMON)
        super().__init__(driver)

    def counts(self) -> dict[str, int]:
        """Number of open resources by account: references to handles, retains of contexts, openings of memory."""
        return {
            name: len(account) if name in _SIZED else sum(account.values())
            for name, account in self.accounts.items()
            if name in self._used
        }

    @property
    def empty(self) -> bool:
        """True if no resource is open."""
        return not any(self.accounts.values())

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], DriverError | None]:
        found, error = batches.each(self._driver, method, arguments)
        match method:
            case "mem_create":  # a new handle has no other reference
                self.accounts["handles"].update(dict.fromkeys(found, 1))
            case "mem_map":
                self.accounts["mappings"].update([mapping[:2] for mapping in arguments[: len(found)]])
            case "mem_release":
                for (handle,) in arguments[: len(found)]:
                    _release(self.accounts["handles"], handle)
        return found, error

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        return batches.copy_each(self._driver, copies, stream)

    def _wrap(self, method: str, call: Call) -> Call:
        entry = CALLS.get(method)
        if entry is None:
            return call
        if isinstance(entry, Opens):
            return self._opening(call, parameters(method), entry)
        account = self.accounts[entry.account]
        if entry.in_range:
            return _closing_range(call, account)
        return _closing(call, parameters(method), account, is_counted=entry.account not in _SIZED)

    def _opening(self, call: Call, names: tuple[str, ...], entry: Opens) -> Call:
        """A call that adds to an account what it opens, and notes that the account is in use."""
        account, used = self.accounts[entry.account], self._used
        at, size_at = (names.index(each) if each else None for each in (entry.key, entry.size))

        @wraps(call)
        def opening(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if kwargs:
                args = (*args, *(kwargs.get(name) for name in names[len(args) :]))
            key = result if at is None else args[at]
            account[key] = account.get(key, 0) + 1 if size_at is None else args[size_at]
            used.add(entry.account)
            return result

        return opening


def _closing(call: Call, names: tuple[str, ...], account: Account, *, is_counted: bool) -> Call:
    """A call that removes the entry of its first argument, or one of several references to it."""

    @wraps(call)
    def closing(*args: Any, **kwargs: Any) -> None:
        call(*args, **kwargs)
        key = args[0] if args else kwargs[names[0]]
        if is_counted:
            _release(account, key)
        else:
            account.pop(key, None)

    return closing


def _closing_range(call: Call, account: Account) -> Call:
    """A call that removes the entries that begin in a range: all that follow on one another, then any behind a hole."""

    @wraps(call)
    def closing(address: int, size: int) -> None:
        call(address, size)
        if account.get(address) == size:
            del account[address]
        else:
            _remove(account, address, address + size)

    return closing


def _release(account: Account, key: int) -> None:
    """Remove one of the references to a key."""
    if (count := account.pop(key, 0)) > 1:
        account[key] = count - 1


def _remove(account: Account, address: int, end: int) -> None:
    while address < end and (size := account.pop(address, 0)):
        address += size
    if address < end:
        for start in [start for start in account if address <= start < end]:
            del account[start]
