"""Order of an import from a counted process: its instances relative to the number of the importing process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.language.entries import Spec
from memtopo.language.fields import OWN_FIRST, OWN_NODE, WHOLE_ORDERS, ProcessOrder, Source

T = TypeVar("T")

_DISTANCES = {"own": 0, "next": 1, "previous": -1}
"""Distance in a ring to the process that a word of an order names."""


def _naming_each_once(order: list[str]) -> list[str]:
    if len(order) > 1 and (whole := next((each for each in WHOLE_ORDERS if each in order), None)):
        message = f"{whole!r} is an order of all processes, and cannot be part of a list"
        raise InvalidValue("MT103", message, help=f"write 'order: {whole}', or own, next and previous")
    if repeated := next((each for each in order if order.count(each) > 1), None):
        raise InvalidValue("MT204", f"{repeated!r} is listed twice", help="list it once")
    return order


Order = Annotated[ProcessOrder, AfterValidator(_naming_each_once)]


def in_order(order: Sequence[str] | None, index: int, instances: Sequence[T]) -> tuple[T, ...]:
    """Return the instances of a process that an import is from; `index` is the number of the importing process.

    For `own-node`, the instances are those of the node.
    """
    if order is None or OWN_NODE in order:
        return tuple(instances)
    count = len(instances)
    distances = range(count) if OWN_FIRST in order else [_DISTANCES[each] for each in order]
    return tuple(instances[(index + distance) % count] for distance in distances)


def none_on_node(path: Path, node: str, other: Spec) -> Diagnostic:
    """Return MT608 for an import from the own node, where the other process has no instance."""
    message = f"import {path[-1]!r} is from the own node, and process {other.path[-1]!r} is not on {node!r}"
    label = Label("its nodes", other.at(other.node_key))
    help = "leave 'order' out, and export via fabric; or have both processes on the same nodes"
    return Diagnostic("MT608", message, (*path, "order"), labels=(label,), help=help)


def outside_order(path: Path, order: Sequence[str] | None, source: Source) -> Diagnostic | None:
    """Return MT608 for an order of an import from outside of the spec."""
    if order is None:
        return None
    message = f"import {path[-1]!r} has an order, and {source} is outside of this spec"
    help = "leave 'order' out: only imports from a counted process of the spec have one"
    return Diagnostic("MT608", message, (*path, "order"), help=help)


def unequal_order(own: Spec, path: Path, order: Sequence[str] | None, other: Spec) -> Diagnostic | None:
    """Return MT608 for an order of an import between processes that do not have the same number of instances."""
    same = own.instances == other.instances is not None or own.countless or other.countless
    if order is None or same or (OWN_NODE in order and other.instances is not None):
        return None
    uncounted = next((each for each in (own, other) if each.instances is None), None)
    help = "leave 'order' out, and the handles are in the order of the processes"
    if uncounted:
        message = f"import {path[-1]!r} has an order, and process {uncounted.path[-1]!r} is not counted"
        labels = (Label("the process", uncounted.path, "key"),)
    else:
        message = f"import {path[-1]!r} has an order, and {own.path[-1]!r} and {other.path[-1]!r} have different counts"
        labels = (Label(f"{other.instances} of them", other.at("count")),)
        help = f"write 'count: {other.instances}' for {own.path[-1]!r}, or {help}"
    return Diagnostic("MT608", message, (*path, "order"), labels=labels, help=help)
