"""Log and metrics of the holders of a story, as production keeps them in files, on a disk that is full at times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from memtopo.cli.service import HoldOptions, metrics_target, opened_service
from memtopo.common.errors import NotWritten
from memtopo.sharing.holder.metrics import PAUSE, REFRESH, MetricsTarget
from memtopo.sharing.holder.state import HolderEvent
from tests.helpers.full_disk import largest_files
from tests.story.world import EPOCH, Actor, Broken, World

LOG = "kv.log"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_VALUE = r'([-\w./:+@,]+|"(\\.|[^"\\\n])*")'
_LINE = re.compile(r'# (HELP|TYPE) \w+ .+|(?P<name>\w+)\{(\w+="(?P<last>[^"]*)",?)+\} (?P<value>[\d.]+)')


@dataclass(slots=True)
class HolderFiles:
    """Files of the holders of a story. Until `full_until` their disk has `room` for so many bytes."""

    world: World
    folder: str
    full_until: float = 0.0
    room: int = 0
    log: bytes = b""
    """What the log has."""
    metrics: bytes | None = None
    """What the file of metrics has; None if there is none."""
    shown: tuple[int, str, int] = (0, "", 0)
    """Generation, state and heartbeat in it."""
    stale: float | None = None
    """Time since which these are not those of the holder."""
    now: tuple[int, str] = (0, "")
    """Generation and state of the holder since then."""
    looked: float = 0.0
    """Time at which they were seen so last."""

    @contextmanager
    def kept(self, actor: Actor) -> Iterator[tuple[Callable[[HolderEvent], None], MetricsTarget]]:
        """Keep the files of a holder: yield what records its events, and the target of its metrics."""
        place = Path(self.folder, "kv.prom")
        options = HoldOptions(log=f"{self.folder}/{LOG}")
        try:
            with metrics_target(str(place)) as target, opened_service(options, "kv") as service:
                assert target
                yield (
                    lambda event: self._record(event, service.record),
                    replace(target, write=lambda text: self._write(place, text, target)),
                )
        finally:
            if not actor.dying and place.exists():
                raise Broken("metrics are left of a layout that has ended")
            if not actor.dying:
                self.metrics = None
            elif self.metrics is not None:  # a process that is killed removes nothing
                place.write_bytes(self.metrics)

    def require_current(self, generation: int, state: str) -> None:
        """Require that metrics are those of the holder soon after they have changed, if the disk has room."""
        now = self.world.now
        recent = EPOCH + now - self.shown[2] < REFRESH + 2 * PAUSE
        if now < self.full_until or (recent and self.shown[:2] == (generation, state)):
            self.stale = None
            return
        if self.stale is None or self.now != (generation, state):
            self.stale, self.now = now, (generation, state)
        elif self.looked > self.stale + 2 * PAUSE:  # since which it has looked at its metrics
            raise Broken(f"metrics are {self.shown}, and the holder has {generation}, {state} since {self.stale}")
        self.looked = now

    def _record(self, event: HolderEvent, record: Callable[[HolderEvent], None]) -> None:
        """Require that an event is added to the log as one line, or as much of it as there is room for."""
        file, before = Path(self.folder, LOG), self.log
        with self._disk(len(before)) as full:
            try:
                record(event)
            except OSError as error:
                raise Broken(f"{event.text} cannot be logged: {error}") from error
        self.log = file.read_bytes()
        if not self.log.startswith(before):
            raise Broken("the log has lost lines")
        size = len(self.log) - len(before)
        added = self.log.removeprefix(before).decode(errors="replace")
        begin = "" if not before or before.endswith(b"\n") else "\n"
        fields = "".join(f" {key}={_VALUE}" for key in event.fields)
        if not re.fullmatch(rf"{begin}{_TIME} memtopo: {re.escape(event.text)}{fields}\n", added):
            inside = added.removeprefix(begin)
            if not full or size != self.room or "\n" in inside:
                raise Broken(f"{event.text} is logged as {added!r}, after {before[-80:]!r}")
        self.room = max(self.room - size, 0)

    def _write(self, place: Path, text: str, target: MetricsTarget) -> None:
        """Require that metrics are replaced as a whole, or left alone if there is no room for them."""
        assert target.write
        try:
            with self._disk(0) as full:
                target.write(text)
            self.metrics = text.encode()
        except NotWritten as error:
            if not full:
                raise Broken(f"metrics are not written: {error}") from error
            raise
        finally:
            found = place.read_bytes() if place.exists() else None
            if found != self.metrics:
                raise Broken(f"metrics are {found!r}, and were to be {self.metrics!r}")
        self._read(text)

    def _read(self, text: str) -> None:
        """Require that metrics are in the text format of Prometheus, and of a layout that is up."""
        lines = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
        if not text.endswith("\n") or not all(lines):
            raise Broken(f"no metrics: {text}")
        values = [(each["name"], each["last"], each["value"]) for each in lines if each and each["name"]]
        found = {name: value for name, _, value in values}
        states = [label for name, label, value in values if (name, value) == ("memtopo_layout_state", "1")]
        if found["memtopo_layout_up"] != "1" or len(states) > 1:
            raise Broken(f"metrics of no layout that is held: {text}")
        heartbeat = int(found["memtopo_layout_heartbeat_time_seconds"])
        self.shown = int(found["memtopo_layout_generation"]), states[0] if states else "awake", heartbeat

    @contextmanager
    def _disk(self, size: int) -> Iterator[bool]:
        """Let a file of some bytes grow no more than there is room. Yield true if the disk is full."""
        full = self.world.now < self.full_until
        with largest_files(size + self.room) if full else nullcontext():
            yield full
