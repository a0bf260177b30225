"""Records: classes of values that are compared by value and never changed, and of objects that change.

They are dataclasses of which neither the class nor an instance takes long to create: a short run defines 150 of them
and has instances of 50, and a layout may have hundreds of thousands of instances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from functools import cached_property
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, whose instances are compared and hashed by value, and never changed.

    Type checkers refuse an assignment to a field. The interpreter does not: a dataclass that it keeps frozen takes five
    times as long to create. A generated method is compiled when it is first called, since compiling all of them takes
    ten times as long as defining the class. A class with cached properties has no slots: they need a `__dict__`.
    """
    slots = not any(isinstance(each, cached_property) for each in vars(cls).values())
    return _with_deferred(dataclass(init=False, repr=False, eq=False, slots=slots)(cls), "__eq__", "__hash__")


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def mutable_record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, whose instances change, and are compared and hashed by identity."""
    return _with_deferred(dataclass(init=False, repr=False, eq=False, slots=True)(cls))


def _with_deferred(cls: type[T], *comparison: str) -> type[T]:
    """Add the generated methods that a class does not define itself: those of `comparison`, and of any dataclass."""
    for name in {"__init__", "__repr__", *comparison} - vars(cls).keys():
        setattr(cls, name, _deferred(cls, name))
    return cls


def _deferred(cls: type[Any], name: str) -> Callable[..., Any]:
    """Return a method that is replaced by the generated one when it is first called."""

    def method(self: object, *args: object, **named: object) -> object:
        generated = _initialiser(cls) if name == "__init__" else _generated(cls, name)
        setattr(cls, name, generated)
        return generated(self, *args, **named)

    return method


def _initialiser(cls: type[Any]) -> Callable[..., Any]:
    """Return `__init__` as `dataclass` generates it, in a third of the time: a short run needs that of 60 classes."""
    positional, by_name, body = ["self"], list[str](), list[str]()
    values: dict[str, Any] = {"__missing__": MISSING}
    for each in fields(cls):
        parameter, value, values[_known(each.name)] = _parameter(each)
        if each.init:
            (by_name if each.kw_only else positional).append(parameter)
        if each.init or value != each.name:
            body.append(f"self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, "*", *by_name] if by_name else positional)
    exec(f"def __init__({parameters}): " + ("; ".join(body) or "pass"), values)  # noqa: S102 as `dataclass` does
    method: Callable[..., Any] = values["__init__"]
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    return method


def _parameter(each: Field[Any]) -> tuple[str, str, Any]:
    """Return the parameter of a field, its value as an expression, and its default or the factory of it."""
    name, known = each.name, _known(each.name)
    if each.default is not MISSING:
        return f"{name}={known}", name if each.init else known, each.default
    if each.default_factory is not MISSING:
        value = f"{known}() if {name} is __missing__ else {name}" if each.init else f"{known}()"
        return f"{name}=__missing__", value, each.default_factory
    return name, name, None


def _known(name: str) -> str:
    """Name of the default of a field, or of its factory, which no field has."""
    return f"__default_{name}__"


def _generated(cls: type[Any], name: str) -> Callable[..., Any]:
    """Return a method as `dataclass` generates it, from another dataclass with the same fields."""
    twin = make_dataclass(
        cls.__name__,
        [(each.name, each.type, each) for each in fields(cls)],
        namespace={"__doc__": cls.__doc__},
        init=False,
        repr=name == "__repr__",
        eq=name == "__eq__",
        unsafe_hash=name == "__hash__",
        match_args=False,
    )
    generated: Callable[..., Any] = getattr(twin, name)
    return generated
