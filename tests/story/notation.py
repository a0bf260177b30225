"""Stories as text: a line `seed 17: RULE`, and a line for each event.

An event is the steps of the scheduler that follow it, its actor, its verb and its arguments: a number, a word, words in
parentheses, or the spec of a layout in brackets: exports with number, GPU and what the states asleep and half do with
them, then the other properties of a `Shape`.

    16 h start [w 1 gpu0 committed drop keep, page 3 gpu2 drop keep, pool 0..4 quota 2 gpu0 drops asleep, split]
    60 e1 attach reader (page) 0.5 False
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from tests.story.layouts import Export, HeapTerms, Pool, Shape
from tests.story.programs import Event

TOKEN = re.compile(r"\[[^]]*\]|\([^)]*\)|\S+")
CONSTANTS = {"None": None, "True": True, "False": False}
FLAGS = [each.name for each in fields(Shape) if each.type == "bool"]


def read_stories(text: str) -> Iterator[tuple[str, int, list[Event]]]:
    """Yield the rule, the seed and the events of each story."""
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        seed, rule = head.removeprefix("seed ").split(": ", 1)
        yield rule, int(seed), [read_event(line) for line in lines]


def written(rule: str, seed: int, events: Sequence[Event]) -> str:
    """Return the text of a story."""
    return "\n".join([f"seed {seed}: {rule}", *map(write_event, events)])


def read_event(line: str) -> Event:
    pace, actor, verb, *arguments = TOKEN.findall(line)
    return Event(actor, verb, tuple(map(_argument, arguments)), int(pace))


def write_event(event: Event) -> str:
    return " ".join([str(event.pace), event.actor, event.verb, *map(_text, event.args)])


def _argument(token: str) -> Any:
    if token[0] == "[":
        return _shape(token[1:-1])
    if token[0] == "(":
        return tuple(token[1:-1].split())
    if token in CONSTANTS:
        return CONSTANTS[token]
    if re.fullmatch(r"-?[0-9.]+", token):
        return float(token) if "." in token else int(token)
    return token


def _text(value: Any) -> str:
    if isinstance(value, Shape):
        return f"[{', '.join(_properties(value))}]"
    return f"({' '.join(value)})" if isinstance(value, tuple) else str(value)


def _properties(shape: Shape) -> Iterator[str]:
    for name, each in shape.exports:
        yield f"{name} {each.count} gpu{each.gpu}{' committed' * each.committed} {each.asleep} {each.half}"
    if pool := shape.pool:
        yield " ".join([f"pool {pool.least}..{pool.most} quota {pool.quota} gpu{pool.gpu} drops", *pool.drops])
    if heap := shape.heap:
        yield f"heap {heap.limit} gpu{heap.gpu} {heap.asleep} {heap.half}"
    yield from (flag for flag in FLAGS if getattr(shape, flag))


def _shape(text: str) -> Shape:
    exports: list[tuple[str, Export]] = []
    others: dict[str, Any] = {}
    for name, *words in (part.split() for part in text.split(", ")):
        if name in FLAGS:
            others[name] = True
        elif name == "pool":
            counts, _, quota, gpu, _, *drops = words
            least, most = counts.split("..")
            others[name] = Pool(int(least), int(most), int(quota), _ordinal(gpu), tuple(drops))
        elif name == "heap":
            others[name] = HeapTerms(int(words[0]), _ordinal(words[1]), *words[2:])
        else:
            exports.append((name, Export(int(words[0]), _ordinal(words[1]), "committed" in words, *words[-2:])))
    return Shape(tuple(exports), **others)


def _ordinal(gpu: str) -> int:
    return int(gpu.removeprefix("gpu"))
