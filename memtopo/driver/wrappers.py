"""Drivers that forward their calls to another driver, translation of GPU ordinals, and batches of calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HOST, DriverError, Grant, Location, LocationKind, Properties, RangeAttribute, gpu

if TYPE_CHECKING:

    class EveryCall(KernelDriver, Any):  # type: ignore[misc]
        """Every call with its type."""
else:

    class EveryCall:
        """Base of a driver whose calls are found by name at run time, so that none can be missing."""


Call = Callable[..., Any]


class Forwarder(EveryCall):
    """A driver that forwards every call to another one.

    A subclass changes calls in `_wrap`, or by defining them.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver: Any = driver

    def __getattr__(self, method: str) -> Call:
        """Wrap a method when it is first used: of all calls a run needs a few."""
        if method not in METHODS:
            raise AttributeError(f"{type(self).__name__} has no {method}")
        call = self._wrap(method, getattr(self._driver, method))
        setattr(self, method, call)
        return call

    def _wrap(self, method: str, call: Call) -> Call:
        """Return what is called for a method, by default the other driver's method itself."""
        del method
        return call


def innermost(driver: Driver) -> tuple[Driver, Callable[[Location], Location]]:
    """Return the driver behind all forwarders, and the function that translates a location to its own ordinals."""
    own: Callable[[Location], Location] = lambda location: location  # noqa: E731 replaced below
    while isinstance(driver, Forwarder):
        own = driver.own_location if isinstance(driver, Renumbered) else own
        driver = driver._driver  # noqa: SLF001 as of this module
    return driver, own


METHODS = frozenset(name for name in dir(KernelDriver) if not name.startswith("_"))
"""Calls of the protocol."""


@cache
def parameters(method: str) -> tuple[str, ...]:
    """Names of the parameters of a driver call, as the protocol declares them."""
    code = getattr(KernelDriver, method).__code__
    return tuple(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


@cache
def defaults(method: str) -> Mapping[str, Any]:
    """Values of the parameters of a driver call that a caller may leave out."""
    called = getattr(KernelDriver, method)
    names = called.__code__.co_varnames[: called.__code__.co_argcount]
    values = called.__defaults__ or ()
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (called.__kwdefaults__ or {})


def returned(method: str) -> str:
    """Type of the result of a driver call, as the protocol declares it; `None` for none."""
    return str(getattr(KernelDriver, method).__annotations__["return"])


class Renumbered(Forwarder):
    """A driver that sees some of the GPUs only, called with the ordinals of a process that sees all of them.

    GPU `ordinals[i]` of the caller is the driver's GPU `i`. Arguments are translated by the names of their parameters.
    """

    def __init__(self, driver: Driver, ordinals: Sequence[int]) -> None:
        self._own = {ordinal: own for own, ordinal in enumerate(ordinals)}
        self._callers = dict(enumerate(ordinals))
        self._translations: dict[str, Callable[[Any], Any]] = {
            "device": self._device,
            "peer": self._device,
            "location": self.own_location,
            "properties": self._properties,
            "grants": self._grants,
        }
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        names = parameters(method)
        translations = {name: self._translations[name] for name in names if name in self._translations}
        if not translations:
            return call

        @wraps(call)
        def translated(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            arguments |= {name: translations[name](arguments[name]) for name in translations if name in arguments}
            return call(**arguments)

        return translated

    def mem_get_allocation_properties_from_handle(self, handle: int) -> Properties:
        """Properties of a chunk; a GPU that the driver cannot name keeps the driver's number for it (fact 43)."""
        found: Properties = self._driver.mem_get_allocation_properties_from_handle(handle)
        if found.location.kind != LocationKind.GPU:
            return found
        return found._replace(location=gpu(self._caller(found.location.id)))

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """An attribute of a managed range, with GPUs by the caller's ordinals."""
        found: tuple[int, ...] = self._driver.mem_range_get_attribute(address, size, attribute)
        if attribute == RangeAttribute.READ_MOSTLY:
            return found
        return tuple(each if each == HOST else self._caller(each) for each in found)

    def _caller(self, own: int) -> int:
        return self._callers.get(own, own)

    def _device(self, ordinal: int) -> int:
        if ordinal not in self._own:
            raise DriverError("cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE", f"this process does not see gpu{ordinal}")
        return self._own[ordinal]

    def own_location(self, location: Location) -> Location:
        """Return a location with the driver's own ordinal of a GPU. Raises `DriverError` for one that it has not."""
        return gpu(self._device(location.id)) if location.kind is LocationKind.GPU else location

    def _properties(self, properties: Properties) -> Properties:
        return properties._replace(location=self.own_location(properties.location))

    def _grants(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        return tuple(Grant(self.own_location(grant.location), grant.access) for grant in grants)


T = TypeVar("T")


class BatchDriver:
    """A driver that makes calls for many chunks, one after another until one fails, in a way of its own.

    Nothing but the calls stands between the calls: each evicts the caches of the processor, so that the code between
    two calls takes several times as long as in a loop of its own.
    """

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
        """Make calls of a method until one fails; return the answers of those before, and the error."""
        return answers(getattr(self, method), arguments)

    @abstractmethod
    def copy_each(self, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
        """Copy as the function `copy_each`."""


def call_each(driver: Driver, method: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Exception | None]:
    """Make calls of a method until one fails; return the answers of those before, and the error."""
    if isinstance(driver, BatchDriver):
        return driver.each(method, arguments)
    return answers(getattr(driver, method), arguments)


def refusal(error: Exception | None) -> DriverError | None:
    """Return the error of a call that the driver refused. Raises any other."""
    if error is not None and not isinstance(error, DriverError):
        raise error
    return error


def copy_each(driver: Driver, copies: Sequence[tuple[int, int, int]], stream: int) -> DriverError | None:
    """Copy in a stream, each given by destination, source and bytes, in any order; return the error (fact 89).

    The stream is not 0. After an error, some of the copies may have been made.
    """
    if isinstance(driver, BatchDriver):
        return driver.copy_each(copies, stream)
    return refusal(answers(driver.memcpy_async, [(*one, stream) for one in copies])[1])


def answers(call: Callable[..., T], arguments: Iterable[tuple[object, ...]]) -> tuple[list[T], Exception | None]:
    """Make calls until one fails; return the answers of those before, and the error."""
    found: list[T] = []
    try:
        for answer in starmap(call, arguments):
            found.append(answer)  # noqa: PERF402  # as this
    except Exception as error:  # noqa: BLE001  # a failure keeps those before it
        return found, error
    return found, None
