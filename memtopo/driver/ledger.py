"""The ledger: an account of what is open, kept apart from the lists of the code that opened it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from memtopo.driver import wrappers
from memtopo.driver.functions import function
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import BatchDriver, Call, Forwarder, parameters

Account = dict[int, int]

Note = Callable[[tuple[Any, ...], Any], object]


ACCOUNTS = (
    "reservations", "handles", "mappings", "bindings", "contexts", "allocations", "pools", "pinned", "registered",
    "opened", "events", "modules", "external", "semaphores", "streams",
)  # fmt: skip
"""Accounts, each of the objects that calls with its name in the table of functions open or close."""

_COMMON = ("reservations", "handles", "mappings", "contexts")
"""Accounts that are counted from the beginning on; any other one from its first entry on."""

SIZED = frozenset({"reservations", "mappings", "allocations", "pinned", "registered"})
"""Accounts with the size of each object, where a call has one; otherwise with the number of references."""

_KEYS: Mapping[str, str] = {
    "mappings": "address", "registered": "address", "bindings": "handle", "contexts": "device"
}  # fmt: skip
"""Arguments by which accounts have their objects; the others have them by the result of the call that opens them."""


def key_of(account: str, arguments: Mapping[str, Any], result: Any) -> Any:
    """Key of what a call has opened in an account."""
    return arguments[_KEYS[account]] if account in _KEYS else result


class Ledger(Forwarder, BatchDriver):
    """A driver that forwards every call to another one and notes what each successful call opened or closed.

    `accounts` has sizes in bytes by address for reservations, mappings, page-locked and registered host memory and
    allocations (managed ones and buffers of external memory among them), and references by key for the rest: retains by
    device for contexts, openings by address for opened memory. File descriptors of exported chunks are the caller's and
    not the driver's, so that they are not counted.
    """

    def __init__(self, driver: KernelDriver) -> None:
        self.accounts: dict[str, Account] = {name: {} for name in ACCOUNTS}
        self._used = set(_COMMON)
        super().__init__(driver)

    def counts(self) -> dict[str, int]:
        """Number of open resources by account: references to handles, retains of contexts, openings of memory."""
        return {
            name: len(account) if name in SIZED else sum(account.values())
            for name, account in self.accounts.items()
            if name in self._used
        }

    @property
    def empty(self) -> bool:
        """True if no resource is open."""
        return not any(self.accounts.values())

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
        found, error = wrappers.call_each(self._driver, method, arguments)
        if note := self._note(method):
            for given, result in zip(arguments, found, strict=False):
                note(given, result)
        return found, error

    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        return wrappers.copy_each(self._driver, copies, stream)

    def _wrap(self, method: str, call: Call) -> Call:
        note, names = self._note(method), parameters(method)
        if note is None:
            return call

        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if kwargs:
                args = (*args, *(kwargs.get(each) for each in names[len(args) :]))
            note(args, result)
            return result

        return noted

    def _note(self, method: str) -> Note | None:
        """Function of the arguments and the result of a call that notes what it opened or closed; None for others."""
        found = function(method)
        if found.opens:
            return self._opening(parameters(method), found.opens)
        if not found.closes:
            return None
        account = self.accounts[found.closes]
        if found.closes == "mappings":
            return lambda args, _: _remove_range(account, *args)
        if found.closes in SIZED:
            return lambda args, _: account.pop(args[0], None)
        return lambda args, _: _release(account, args[0])

    def _opening(self, names: tuple[str, ...], name: str) -> Note:
        """Note that adds to an account what a call opens, and that the account is in use."""
        account, used = self.accounts[name], self._used
        at = names.index(_KEYS[name]) if name in _KEYS else None
        size_at = names.index("size") if name in SIZED and "size" in names else None

        def opened(args: tuple[Any, ...], result: Any) -> None:
            key = result if at is None else args[at]
            account[key] = account.get(key, 0) + 1 if size_at is None else args[size_at]
            used.add(name)

        return opened


def _remove_range(account: Account, address: int, size: int) -> None:
    if account.get(address) == size:
        del account[address]
    else:
        _remove(account, address, address + size)


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
