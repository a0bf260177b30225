"""What a holder tells about itself and about those who import from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.output.diagram.model import Diagram
from memtopo.plans.report import Checks, MachineLine
from memtopo.sharing.offers import Kind, Offer, Via

State = Literal["serving", "releasing"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one importer was given of one export: how many different handles, and the bytes that they stand for."""

    export: str
    kind: Kind
    via: Via
    handles: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Importer:
    """A process that was given handles and is still connected; `since` is in seconds of the epoch.

    `handles` and `bytes` count everything; `taken` names its first exports.
    """

    id: int
    pid: int
    uid: int
    since: float
    handles: int
    bytes: int
    bound: bool
    """Whether it uses something over ipc, which is gone when the holder lets go (facts 31, 32)."""
    taken: tuple[Taken, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """A held layout. Times are in seconds of the epoch; `deadline` is when it is let go by itself.

    `picture` is the layout as it is drawn, where its holder has told what it was built from.
    """

    name: str
    socket: str
    pid: int
    uid: int
    since: float
    state: State
    deadline: float | None
    spec: str | None
    machine: MachineLine
    offers: tuple[Offer, ...]
    importers: tuple[Importer, ...]
    picture: Diagram | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """What a holder says unasked: it is `releasing`, and waits `grace` seconds for those bound to it."""

    kind: Literal["releasing"]
    grace: float


@dataclass(frozen=True, slots=True)
class Released:
    """A layout that was let go: who lost memory in use (`lost`), and who keeps some of it from being free (`kept`).

    `gone` says whether its teardown was seen to end.
    """

    name: str
    lost: tuple[Importer, ...]
    kept: tuple[Importer, ...]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """What a holder found when it looked at its layout: whether everything is as declared, and how much that is."""

    name: str
    ok: bool
    checks: Checks
