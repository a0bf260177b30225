"""Bases of drivers that forward their calls to another driver, for tests that change some of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    AnyDriver = Any
else:
    AnyDriver = object
"""Base that a type checker accepts as any driver."""


class ForwardingDriver(AnyDriver):  # type: ignore[misc]
    """Driver that forwards every call."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, method: str) -> Any:
        return getattr(self._driver, method)


class HandleRecorder(ForwardingDriver):
    """Driver that forwards every call and records the handles of the chunks that it creates."""

    def __init__(self, driver: Any) -> None:
        super().__init__(driver)
        self._created: list[int] = []

    def mem_create(self, *args: Any) -> int:
        self._created.append(self._driver.mem_create(*args))
        return self._created[-1]
