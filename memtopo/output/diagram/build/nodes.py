"""Devices of a diagram with their nodes: the same ordinal is another GPU on each node."""

from __future__ import annotations

import re
from dataclasses import replace

from memtopo.geometry.diagram import DeviceAccess, Diagram, MappingSpan, RangeDiagram, Resource

_OWN = re.compile("gpu[0-9]+|host(:[0-9]+)?")
"""Devices of a process by their own names."""


def on_node(diagram: Diagram, node: str) -> Diagram:
    """Diagram of a process of a node, whose devices have it: `a/gpu0`; those of other nodes have theirs already."""
    return replace(
        diagram,
        ranges=tuple(_range(each, node) for each in diagram.ranges),
        things=tuple(_resource(each, node) for each in diagram.things),
    )


def _range(range_: RangeDiagram, node: str) -> RangeDiagram:
    return replace(range_, pieces=tuple(_span(each, node) for each in range_.pieces))


def _span(span: MappingSpan, node: str) -> MappingSpan:
    access = tuple(DeviceAccess(_named(each.device, node), each.access) for each in span.access)
    return replace(span, locations=tuple(_named(each, node) for each in span.locations), access=access)


def _resource(resource: Resource, node: str) -> Resource:
    parts = tuple(_resource(each, node) for each in resource.parts)
    return replace(resource, locations=tuple(_named(each, node) for each in resource.locations), parts=parts)


def _named(device: str, node: str) -> str:
    return f"{node}/{device}" if _OWN.fullmatch(device) else device
