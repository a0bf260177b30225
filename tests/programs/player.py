"""Recorded programs, made again on the simulator: each in a process of its own, or one after another in one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from memtopo import machine
from memtopo.machine import Machine
from memtopo.machine.queries import anonymous, with_gpus
from memtopo.testing import simulated
from tests.differential.traces import END, Trace
from tests.helpers.python_process import run_python

EXPLAINED = (
    ("cuMemHostAlloc", r"(cuPointerGet|cuMemGetAddressRange)", r"\b(1000|4096|4K)\b"),
    ("cuIpcOpenMemHandle", r"there cuPointerGetAttributes? \S*\b19\b\S* o", r"8:(\?|o\d+)"),
    ("cuMemCreate", r"cuPointerGetAttribute 21 r", "4:[01]"),
)
"""Rows of docs/simulator.md that explain differences, with patterns of the calls and of the parts that differ."""


_COLD = "before init"
_APART = (_COLD, "pools", "default pool")


class Difference(NamedTuple):
    """First difference of a program: its name, the call with the recorded answer, and the simulator's answer."""

    program: str
    step: str
    simulated: str


def one_h200() -> Machine:
    """Machine of the recordings: one of the GPUs of h200x2, which has no other to join in multicast objects."""
    found = anonymous(with_gpus(machine.load("h200x2"), [0], [""]))
    found.devices[0].attributes["MULTICAST_SUPPORTED"] = 0
    return found


def differences(traces: Iterable[Trace], *, on_gpu: bool = False) -> list[Difference]:
    """Make programs again; returns the differences that no row of docs/simulator.md explains, one of each program.

    A program that changes the default pool, or begins before the driver is initialised, has a process of its own.
    """
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.seed if trace.seed in _APART else "", []).append(trace)
    with nullcontext() if on_gpu else simulated(one_h200()):
        return [each for group in groups.values() for each in _differences(group)]


def _differences(traces: Sequence[Trace]) -> Iterable[Difference]:
    command = [sys.executable, "-m", "tests.programs.worker", *[_COLD] * (traces[0].seed == _COLD)]
    given = "".join(f"{call}\n" for trace in traces for call in [*(step.call for step in trace.steps), END])
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    done = run_python(command, input=given, env=env, capture_output=True, text=True, check=True)
    answers = iter(done.stdout.splitlines())
    for trace in traces:
        pairs = [(step, next(answers)) for step in trace.steps]
        next(answers)
        first = next(((step, answer) for step, answer in pairs if not is_same(*step, answer)), None)
        if first:
            yield Difference(trace.seed, " -> ".join(first[0]), first[1])


def is_same(call: str, recorded: str, answer: str) -> bool:
    """Return whether an answer is the recorded one, or differs as a row of docs/simulator.md says."""
    if recorded == answer:
        return True
    parts = (part for _, calls, part in EXPLAINED if re.match(calls, call))
    return any(re.sub(part, "*", recorded) == re.sub(part, "*", answer) for part in parts)
