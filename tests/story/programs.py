"""Programs of the processes of a story: a holder, engines that import from it, and operators that change it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from msgspec.structs import replace

from memtopo.api.attachment import Attached, Attachment, attach_once, build_attachment
from memtopo.api.errors import NotApplied, NotSwitched, Unsuitable
from memtopo.api.imports import AttachTerms, Role
from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.driver.handles import Handle, close_handles
from memtopo.kinds.layout import current
from memtopo.language import SpecText
from memtopo.plans.progress import SafeProgress
from memtopo.plans.report import Report
from memtopo.run.apply import Application, ThisProcess
from memtopo.run.conductor import conduct
from memtopo.run.holder import Holder, about_holder
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.worker_process import Peers
from memtopo.run.processes.workers import Workers
from memtopo.session.composition import Composition, Holding, HoldResult, RunRequest, revision
from memtopo.sharing import wire
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.holder.state import HolderEvent, ProgressNotices, Supervision
from memtopo.sharing.imports import ImportMismatch
from memtopo.sharing.messages import HandlesAnswer
from memtopo.sharing.wire import layout_source
from tests.story.borrowing import VERBS, Borrower
from tests.story.layouts import (
    BLOCK,
    CELL,
    CHUNK,
    POOL,
    TICK,
    Shape,
    composition_of,
    document_of,
    machine_of,
    target_of,
)
from tests.story.lending import lending_export
from tests.story.oracle import Held, Oracle, context_of, memory_of, stamp, version_of
from tests.story.workers import StorySource
from tests.story.world import OTHER_USER, STRANGER, USER, Actor, Broken, Died

_USERS = {"owner": OTHER_USER, "forbidden": STRANGER}
"""Other users who make a mistake, by its code."""

MISTAKES = (
    "lease", "stale", "invalid", "range", "unknown", "packet", "version", "request", "unread", *_USERS, "imported",
)  # fmt: skip
"""Codes of what an operator requests by mistake."""

_AT_ANY_TIME = (
    "gone", "timeout", "starting", "changing", "releasing", "state", "absent", "uncommitted", "failed", "limit",
)  # fmt: skip
"""Codes of errors that depend on the situation."""

_SILENCE = 30.0
"""Seconds of silence after which a process of a layout is taken for dead."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happens: an actor does something, or something befalls it. `pace` steps of the scheduler follow."""

    actor: str
    verb: str
    args: tuple[Any, ...] = ()
    pace: int = 4

    def __str__(self) -> str:
        return f"{self.actor} {self.verb} {' '.join(map(str, self.args))}".rstrip()


@dataclass(slots=True)
class HolderProgram:
    """A process that holds a layout until it is released, stopped or killed."""

    oracle: Oracle
    shape: Shape
    gpus: int
    rehearse: bool = False
    full: bool = False
    """True if the layout has a full check before it is held."""

    stopped: int = 0
    reload: Shape | None = None
    report: Report | None = None
    held: Held | None = None

    def __call__(self, actor: Actor) -> None:
        try:
            self._hold(actor)
        except MemtopoError as error:
            actor.world.note(actor.name, f"does not hold: {_reason(error)}")
        if self.report:
            actor.world.note(actor.name, f"ends: {self.report.outcome}, {len(self.report.leaks)} left")
        for driver in actor.drivers:
            if self.report and not self.report.leaks:
                self.oracle.ended(actor, driver)
            elif not self.oracle.faults:
                raise Broken(f"the holder has left something: {self.report}")
            driver.end()

    def _hold(self, actor: Actor) -> None:
        target = target_of(self.gpus, actor.open_driver)
        composition = composition_of(self.shape, self.gpus)
        check = "full" if self.full else "fast"
        request = composition.request(exclusive=False, rehearse=self.rehearse, check=check)
        composition = replace(composition, target=target)
        with claim(actor.world.endpoint) as claimed, self.oracle.files.kept(actor) as (record, metrics):
            self.oracle.held = self.held = Held(actor, self.shape)
            self.oracle.lent.begin(self.shape.pool)

            def log(event: HolderEvent) -> None:
                self.oracle.note(event)
                record(event)

            supervision = Supervision(metrics=metrics, reload=self._reload, log=log)
            holder = _Holder(
                claimed,
                about_holder(composition, request),
                partial(revision, target=target),
                Holding(allow_uids=(OTHER_USER,)),
                supervised=lambda: _entered(supervision),
                progress=ProgressNotices(actor.system.now),
                system=actor.system,
                begun=partial(self._begun, actor),
            )
            if self.shape.split:
                self.report = self._conduct(actor, composition, request, holder)
                claimed.report_end(self.report)
            else:
                self.report = Application(composition, request, stop=lambda: self.stopped).run(holder)

    def _conduct(self, actor: Actor, composition: Composition, request: RunRequest, holder: Holder) -> Report:
        """Hold a layout of several processes."""
        spec = SpecText.of(composition.document)
        ensemble = Ensemble(request, spec, composition.target.machine, _SILENCE, system=actor.system)
        source = StorySource(ensemble, actor, self.oracle, composition.target if self.shape.joined else None)
        progress = SafeProgress(holder.progress)
        with Workers(ensemble, progress, lambda: self.stopped, Peers(), source) as workers:
            return conduct(workers, replace(holder, ready=workers.resume).hold)

    def _begun(self, actor: Actor, conductor: ThisProcess | Workers) -> None:
        assert self.held
        actor.world.connecting.clear()
        self.held.conductor, self.held.served = conductor, True

    def _reload(self) -> Callable[[], str] | None:
        shape, self.reload = self.reload, None
        if shape is None:
            return None
        self.oracle.proposals["SIGHUP"] = shape
        return lambda: source_of(shape, self.gpus)


class _Holder(Holder, frozen=True, kw_only=True):
    """A holder that tells the story when it begins to serve."""

    begun: Callable[[ThisProcess | Workers], None]

    def hold(self, conductor: Any) -> HoldResult:
        self.begun(conductor)
        return Holder.hold(self, conductor)


@contextmanager
def _entered(supervision: Supervision) -> Iterator[Supervision]:
    yield supervision


@cache
def source_of(shape: Shape, gpus: int) -> str:
    """Return a spec with its machine, as clients send it."""
    return layout_source(document_of(shape), machine_of(gpus))


@dataclass(slots=True)
class EngineProgram:
    """A process that attaches to the layout, maps its memory, follows its changes, and leaves."""

    oracle: Oracle
    gpus: int
    attachment: Attachment | None = None
    attached: Attached | None = None
    writes: bool = False
    stamped: dict[str, int] = field(default_factory=dict)
    borrower: Borrower = field(init=False)

    def __post_init__(self) -> None:
        self.borrower = Borrower(self.oracle)

    def __call__(self, actor: Actor) -> None:
        while True:
            event: Event = actor.take()
            actor.doing = event.verb
            failed = actor.failed
            try:
                self._act(actor, event)
            except NotApplied as error:
                if getattr(error.__cause__, "code", "") == "absent" and not error.report.leaks:
                    raise Broken(f"{actor.name} is refused memory that went while it attached") from error
                actor.world.note(actor.name, f"{event.verb}: not applied, {len(error.report.leaks)} left")
                self._left(actor, leaks=bool(error.report.leaks), faulted=actor.failed > failed)

    def _act(self, actor: Actor, event: Event) -> None:
        """Do something; after some errors a process has to attach anew. Raises `NotApplied`."""
        try:
            if event.verb not in VERBS:
                getattr(self, event.verb)(actor, *event.args)
            elif self.attached and lending_export(self.attached):
                getattr(self.borrower, event.verb)(actor, self.attached, *event.args)
        except NotApplied:
            raise
        except MemtopoError as error:
            actor.world.note(actor.name, f"{event.verb}: {_reason(error)}")
            lost = isinstance(error, ImportMismatch) or "can only be taken down" in str(error)
            lost |= isinstance(error, ExchangeError) and error.code == "committed"
            if lost or self.attached is None:
                self.leave(actor)
        else:
            actor.world.note(actor.name, f"{event.verb}: done")

    def attach(
        self, actor: Actor, role: Role, exports: Sequence[str], wait: float, reattach: bool, room: int = 0
    ) -> None:
        """Attach to the layout in a role, with room for so many chunks of the plain export."""
        if self.attached:
            return
        system, target = actor.system, target_of(self.gpus, actor.open_driver)
        terms: Any = partial(AttachTerms.within, wait, exports or None, role, None, system)
        page = self.oracle.held.shape.public("page") if self.oracle.held else "page"
        reserve = {page: room * CHUNK} if room else {}
        attempt = partial(attach_once, actor.world.endpoint, None, None, target, (), None, reserve, reattach=reattach)
        self.writes = role == "writer"
        self.attachment = Attachment(partial(build_attachment, terms, attempt))
        self.attached = self.attachment.__enter__()
        self.look(actor)

    def poll(self, actor: Actor, timeout: float) -> None:
        """Follow the next notice of the holder."""
        if not self.attached:
            return
        before, attached = self.attached._lease.client, self.attached
        try:
            with self.borrower.changing(actor, attached, tuple(self.borrower.has.values())):
                notice = attached.poll(timeout)
        except ExchangeError as error:
            if error.code != "gone":
                raise
            actor.world.note(actor.name, "the holder is gone")
            self.leave(actor)
            return
        except Unsuitable:
            actor.world.note(actor.name, "the layout has something else now")
            self.leave(actor)
            return
        except NotSwitched:
            before = attached._lease.client  # no lease of another holder, if it imports nothing from that
            raise
        finally:
            if attached._lease.client is not before:  # of another holder, whose exports it leases again
                self.writes, self.stamped = attached._importer.role == "writer", {}
        if notice:
            actor.world.note(actor.name, f"follows {notice.kind} {sorted(notice.exports)}")
        self.look(actor)

    def catch_up(self, actor: Actor) -> None:
        """Follow all notices that have come, and those of the next second."""
        while self.attached and self.attached._lease.client and self.attached._lease.client._notices:
            self.poll(actor, 0.0)
        self.poll(actor, 1.0)

    def look(self, actor: Actor) -> None:
        """Read all that is imported, and compare it."""
        attached = self.attached
        for name, offer in sorted(attached.exports.items()) if attached else ():
            assert attached
            if name in attached.absent or name == TICK:
                continue
            if self.writes and offer.commit:
                self.oracle.read_new(actor, attached, name)
                continue
            if offer.lends:
                self.borrower.look(actor, attached)
                continue
            if name in (BLOCK, CELL):
                self.oracle.read_allocated(actor, attached, name)
                continue
            memory, version = memory_of(attached, name), version_of(attached, name)
            if version.generation:
                self.oracle.learn(version.client.pid, name, version.generation, memory)
            self.oracle.read(actor, attached, name, memory)

    def write(self, actor: Actor, plain: bool) -> None:
        """Write the exports that this process leases, or one that no process commits."""
        attached = self.attached
        if not attached:
            return
        offers = [(name, each) for name, each in sorted(attached.exports.items()) if not each.lends and name != TICK]
        names = [name for name, offer in offers if bool(offer.commit) is not plain]
        for name in names if plain or self.writes else ():
            if name in attached.absent or name in self.stamped:
                continue
            number = self.oracle.new_content(actor, name)
            if name in (BLOCK, CELL):
                self.oracle.write_allocated(attached, name, number)
                continue
            memory = memory_of(attached, name)
            driver, start = attached._session.driver, attached.address(name)
            with current(driver, context_of(attached, name)):
                for index, one in enumerate(memory):
                    driver.memcpy_htod(start + index * CHUNK, stamp(number, index))
                    self.oracle.wrote(actor, name, one, number, plain=plain)
            if not plain:
                self.stamped[name] = number

    def commit(self, actor: Actor) -> None:
        """Write what is not written yet, and commit it."""
        if not self.attached or not self.writes:
            return
        self.stamped = {}  # its memory may be another one than that which was written
        self.write(actor, plain=False)
        committing = [self.oracle.contents[number] for number in self.stamped.values()]
        for each in committing:
            each.state = "committing"
        try:
            self.attached.commit()
        except ExchangeError as error:
            if error.code in ("gone", "timeout"):
                self.writes = False  # it may be committed
            else:
                for each in committing:
                    each.state = "written"
            raise
        finally:
            self.stamped = {}
        for each in committing:
            each.state = "committed"
        self.writes = False

    def leave(self, actor: Actor) -> None:
        """Let go of everything."""
        attachment, self.attachment, self.attached, self.stamped = self.attachment, None, None, {}
        self.borrower.end(actor)
        if attachment:
            attachment.__exit__(None, None, None)
        for driver in actor.drivers:
            self.oracle.ended(actor, driver)
        actor.drivers.clear()

    def _left(self, actor: Actor, *, leaks: bool, faulted: bool) -> None:
        """End the process after a layout that was not built, or not taken down."""
        if leaks and not faulted:
            raise Broken(f"{actor.name} has left something without a fault")
        self.attachment = self.attached = None
        self.stamped = {}
        self.borrower.end(actor)
        for driver in actor.drivers:
            if leaks:
                driver.end()
            self.oracle.ended(actor, driver)
        actor.drivers.clear()


@dataclass(slots=True)
class OperatorProgram:
    """A process that changes the layout, looks at it, or takes handles and does not follow its notices."""

    oracle: Oracle
    gpus: int
    kept: ExitStack = field(default_factory=ExitStack)

    def __call__(self, actor: Actor) -> None:
        while True:
            event: Event = actor.take()
            actor.doing = event.verb
            try:
                getattr(self, event.verb)(actor, *event.args)
            except MemtopoError as error:
                actor.world.note(actor.name, f"{event.verb}: {_reason(error)}")
            else:
                actor.world.note(actor.name, f"{event.verb}: done")

    def _connect(self, actor: Actor) -> Client:
        return connect(actor.world.endpoint, suggest=False, system=actor.system)

    def switch(self, actor: Actor, state: str, wait: float, force: bool, full: bool = False) -> None:
        """Switch the layout."""
        begun = actor.world.now
        with self._connect(actor) as client:
            done = client.switch(state, wait=wait, force=force, full=full)
        if done.state != state or (done.kept and not force):
            raise Broken(f"a switch to {state} is answered with {done}")
        if done.checks.different:
            self.oracle.require_written(begun, f"a switch finds {done.checks.differences}")

    def change(self, actor: Actor, shape: Shape, wait: float, force: bool, full: bool = False) -> None:
        """Change the layout to another spec."""
        self.oracle.proposals[f"process {actor.pid}"], begun = shape, actor.world.now
        with self._connect(actor) as client:
            done = client.change(source_of(shape, self.gpus), wait=wait, force=force, full=full)
        if done.kept and not force:
            raise Broken(f"a change is answered with {done}")
        if done.checks.different:
            self.oracle.require_written(begun, f"a change finds {done.checks.differences}")

    def release(self, actor: Actor, force: bool, grace: float) -> None:
        """Release the layout."""
        self.oracle.releases[f"process {actor.pid}"] = (force, grace)
        with self._connect(actor) as client:
            done = client.release(force=force, grace=grace)
        actor.world.note(actor.name, f"released: gone={done.gone} {done.outcome}")

    def check(self, actor: Actor) -> None:
        """Have the layout checked."""
        with self._connect(actor) as client:
            found = client.check()
        if found.different:
            raise Broken(f"a check finds {found.differences}")

    def status(self, actor: Actor) -> None:
        """Look at the layout."""
        with self._connect(actor) as client:
            client.status()
            client.statistics()
            client.source()

    def mistake(self, actor: Actor, code: str) -> None:
        """Request what a holder has to refuse with a code, unless it refuses all requests now."""
        actor.user = _USERS.get(code, USER)
        try:
            with self._connect(actor) as client:
                if code == "imported":
                    with self._connect(actor) as other:
                        close_handles(list(other.handles(CELL)))
                        close_handles(list(client.handles(CELL)))
                if code == "unread":
                    return self._read_late(actor, client)
                self._mistake(client, code)
        except ExchangeError as error:
            if error.code not in (code, *(["unknown"] if code == "imported" else []), *_AT_ANY_TIME):
                raise Broken(f"{code}: refused as {error.code}: {error.message}") from error
            raise
        finally:
            actor.user = USER
        raise Broken(f"{code}: not refused")

    def _mistake(self, client: Client, code: str) -> None:
        assert self.oracle.held
        shape = self.oracle.held.shape
        name = shape.public("w")
        match code:
            case "lease":
                client.commit([name])
            case "stale":
                client.change(source_of(shape, self.gpus), generation=1 << 40)
            case "invalid":
                client.change(source_of(shape, self.gpus).replace("2MiB", "3MiB"))
            case "range" | "unknown":
                export = name if code == "range" else "nothing"
                client.request("handles", HandlesAnswer, export=export, first=1 << 20, count=1)
            case "packet":
                client.exchange("handles", export=7, first=0, count=1)
            case "version":
                client.exchange("status", memtopo=99)
            case "request":
                client.exchange("dance")
            case "owner" | "forbidden":
                client.switch("awake")

    def _read_late(self, actor: Actor, client: Client) -> None:
        """Request handles again and again before their answers are read, which may be refused."""
        assert self.oracle.held
        request = {"request": "handles", "export": self.oracle.held.shape.public("page"), "first": 0, "count": 1}
        with socket.socket(fileno=os.dup(client.fileno())) as sock, suppress(OSError):
            for _ in range(3):
                wire.send(sock, wire.encode(request))
                actor.pause(1.0)
            while packet := wire.receive(sock):
                packet.close()

    def borrow(self, actor: Actor, export: str) -> None:
        """Take handles of an export, and keep them."""
        client = self.kept.enter_context(self._connect(actor))
        handles: list[Handle] = []
        self.kept.callback(close_handles, handles)
        handles += client.handles(export)

    def take_lent(self, actor: Actor, count: int) -> None:
        """Be lent chunks, and keep their handles."""
        client = self.kept.enter_context(self._connect(actor))
        assert self.oracle.held
        blocks, _ = client.lend(self.oracle.held.shape.public(POOL), count)
        self.kept.callback(close_handles, [each.handle for each in blocks])

    def restore(self, _actor: Actor) -> None:
        """Close what was taken."""
        self.kept.close()


def _reason(error: MemtopoError) -> str:
    code = error.code if isinstance(error, ExchangeError) else ""
    return f"{type(error).__name__} {code}".rstrip()


SIGTERM = int(signal.SIGTERM)
DIED = Died
