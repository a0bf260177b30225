"""A driver that records each call that it forwards: its arguments, its result, and what it is made for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from msgspec import Struct

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call, Forwarder, defaults, parameters


class CallContext(Struct, eq=False):
    """Purpose of calls: a phase of the run, and the step whose effect they make or undo.

    A call without a `verb` is made for no step: it measures, checks or verifies. The run keeps it up to date.
    """

    phase: str = ""
    verb: str = ""
    subject: str = ""
    undo: bool = False
    number: int = 0
    """Number of the step in the order in which steps were begun, from 1."""
    lost: str = ""
    """The end of the trace and its cause, if calls are missing there."""

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.leave()

    def begin_step(self, verb: str, subject: str, *, undo: bool) -> None:
        """Begin a step, or its undo."""
        self.verb, self.subject, self.undo = verb, subject, undo
        self.number += 1

    @contextmanager
    def within(self, verb: str, subject: str) -> Iterator[None]:
        """Calls of the code inside are made for something else, in the middle of a step or between two."""
        before = self.verb, self.subject, self.undo
        self.verb, self.subject, self.undo = verb, subject, False
        try:
            yield
        finally:
            self.verb, self.subject, self.undo = before

    def leave(self) -> None:
        """End a step."""
        self.verb = self.subject = ""
        self.undo = False


class DriverCall(Struct, frozen=True):
    """One call: the method of the protocol, its arguments by name, and its result, or the driver's error.

    `verb` and `subject` are those of the step that it is made for; without, it changes nothing that lasts.
    """

    method: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: str | None = None
    phase: str = ""
    verb: str = ""
    subject: str = ""
    undo: bool = False
    number: int = 0

    @property
    def function(self) -> str:
        """Name of the C function."""
        from memtopo.driver.functions import function  # noqa: PLC0415 a run that is not recorded does without the table

        return function(self.method).name

    @property
    def of_step(self) -> bool:
        """True if the call builds the layout or takes it down."""
        return bool(self.verb)


class Record(Protocol):
    """Receiver of the calls of a driver, in order."""

    def begin(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Record a call that is about to be made."""

    def end(self, result: Any, error: BaseException | None, seconds: float) -> None:
        """Record the end of the call that was begun last."""


class Recorder(Forwarder):
    """A driver that forwards every call to another one and gives it to a record.

    It makes no calls in batches, so that each is recorded by itself.
    """

    def __init__(self, driver: Driver, record: Record) -> None:
        self._record = record
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        names, omitted = parameters(method), defaults(method)
        begin, end, clock = self._record.begin, self._record.end, time.perf_counter

        @wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            begin(method, {**omitted, **dict(zip(names, args, strict=False)), **kwargs})
            start = clock()
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                end(None, error, clock() - start)
                raise
            end(result, None, clock() - start)
            return result

        return recorded


class CallList:
    """Record of calls, in memory, or in a receiver of each call as soon as it is made."""

    def __init__(self, context: CallContext, add: Callable[[DriverCall], object] | None = None) -> None:
        self.calls: list[DriverCall] = []
        self._add = add or self.calls.append
        self._context = context
        self._begun: tuple[str, Mapping[str, Any]] = ("", {})

    def begin(self, method: str, arguments: Mapping[str, Any]) -> None:
        self._begun = method, arguments

    def end(self, result: Any, error: BaseException | None, seconds: float) -> None:
        del seconds
        (method, arguments), at = self._begun, self._context
        name = error_name(error)
        about = at.phase, at.verb, at.subject, at.undo, at.number
        self._add(DriverCall(method, arguments, result, name, *about))


def error_name(error: BaseException | None) -> str | None:
    """Name of the error of a call: the driver's, or that of the exception that ended it; None for none."""
    if error is None:
        return None
    return error.name if isinstance(error, DriverError) else type(error).__name__
