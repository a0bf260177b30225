"""Leaks of a run: resources open before, during and after it, with the cause of each difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from memtopo.common.text import enumerated, first_words, numbered, plural
from memtopo.common.units import rounded
from memtopo.diagnostics.model import Path
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.executor import Execution, ResourceSnapshot, Teardown, failing
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Residence
from memtopo.kinds.resources import ATTACHED, RetainContext
from memtopo.kinds.step import Finding
from memtopo.plans.report import DeviceMemory, Leak, Left

_RELEASE = "cuMemRelease"
"""Call that undoes the steps which have a handle of a chunk under their label."""

_BLOCK = 2 << 20

_NAMED = 4
"""Number of external entries of one holder that a note names."""


PositionOf = Callable[[Path], str | None]


class ResourceBalance:
    """Resources of a run, recorded while it is held and before its teardown, and compared with those left after it.

    `ledger` is the ledger of the run's driver. `exclusive` is as in `RunRequest`.
    """

    def __init__(self, execution: Execution, ledger: Ledger, *, exclusive: bool) -> None:
        self._execution, self._ledger, self._exclusive = execution, ledger, exclusive
        self._ledger_before = ledger.counts()
        self._ledger_held: dict[str, int] = {}
        self._held: ResourceSnapshot | None = None
        self._released: dict[int, int] = {}
        """Free bytes of GPUs that the layout used before a change, measured after it."""
        self._unreleased: list[Leak] = []
        self._handles: dict[str, int] = {}
        self._holders: dict[str, int] = {}

    def record_held(self) -> None:
        """Record what the complete layout uses. Raises `StepFailed`."""
        self._held = self._execution.snapshot()
        self._ledger_held = self._ledger.counts()

    def record_before_teardown(self) -> None:
        """Record the handles and external holders that the layout loses in the teardown."""
        layout = self._execution.layout
        self._handles, self._holders = dict(layout.chunks), dict(layout.of(ATTACHED))

    @contextmanager
    def rebaseline(self, gpus: Collection[int]) -> Iterator[Callable[[], None]]:
        """Record anew, while the code inside brings the layout to one that uses these GPUs.

        The code calls the yielded function, which raises `StepFailed`, when the layout is complete. If the code fails,
        even after that, all is as it was recorded before. Raises `StepFailed`.
        """
        execution = self._execution
        before = execution.baseline, self._released, self._held, self._ledger_held
        with ExitStack() as following:
            following.enter_context(self._following(gpus))

            def complete() -> None:
                following.close()
                self.record_held()

            try:
                yield complete
            except BaseException:
                execution.baseline, self._released, self._held, self._ledger_held = before
                raise

    @contextmanager
    def _following(self, gpus: Collection[int]) -> Iterator[None]:
        """Keep the baseline comparable while the code inside brings the layout to one that uses these GPUs.

        GPUs that were not used before are measured before it, GPUs that are no longer used after it, each with a
        reference to its context. Raises `StepFailed`.
        """
        execution = self._execution
        baseline, used = execution.baseline, {*execution.layout.contexts}
        came, went = sorted({*gpus} - used), sorted(used - {*gpus})
        if baseline is None or not (came or went):
            yield
            return
        before = self._snapshot({}).fds
        with self._retained(came) as new:
            opened = self._snapshot(new)
            with self._retained(went) as unused:
                yield
                closed = self._snapshot(unused)
            after = self._snapshot({}).fds
        fds = baseline.fds + (opened.fds - before) - (closed.fds - after)
        execution.baseline = ResourceSnapshot({**opened.free, **baseline.free}, fds, baseline.files)
        self._released = {**self._released, **closed.free}

    @contextmanager
    def _retained(self, devices: Iterable[int]) -> Iterator[Mapping[int, int]]:
        """References to the contexts of GPUs; the driver counts them."""
        driver, contexts = self._execution.driver, dict[int, int]()
        try:
            with failing("reference to a context"):
                for device in devices:
                    contexts[device] = driver.device_primary_ctx_retain(device)
                yield contexts
        finally:
            for device in contexts:
                try:
                    driver.device_primary_ctx_release(device)
                except DriverError as error:
                    self._unreleased.append(Leak(RetainContext.leak(f"gpu{device}"), str(error)))

    def _snapshot(self, contexts: Mapping[int, int]) -> ResourceSnapshot:
        return ResourceSnapshot.take(self._execution.driver, contexts)

    def left(self, teardown: Teardown, kept: int) -> Left | None:
        """Return what is left, less `kept` descriptors that stay open on purpose; None without a baseline."""
        before, held, after = self._execution.baseline, self._held, teardown.after
        if before is None or after is None:
            return None
        finally_free = {**self._released, **after.free}
        memory = tuple(
            DeviceMemory(f"gpu{device}", free, held.free.get(device) if held else None, finally_free[device])
            for device, free in sorted(before.free.items())
            if device in finally_free
        )
        counts = self._ledger_before, self._ledger_held, self._ledger.counts()
        # Without accounts that were first used after the start, and empty at all of these times.
        shown = {name for name in counts[-1] if name in counts[0] or any(each.get(name) for each in counts)}
        opened = [{name: number for name, number in each.items() if name in shown} for each in counts]
        return Left(opened[0], opened[1], opened[2], before.fds, held.fds if held else None, after.fds - kept, memory)

    def leaks(self, teardown: Teardown, left: Left | None, position_of: PositionOf) -> tuple[Leak, ...]:
        """Return what could not be released, by name where it has one; `position_of` is as in `RunRequest`."""
        leaks = [replace(leak, place=position_of(leak.path)) for leak in teardown.leaks]
        leaks += self._unreleased
        if not leaks:
            leaks.extend(self._open_chunks(position_of))
        if not self._ledger.empty and not leaks:
            leaks.append(Leak("something that no step owns", "the ledger is not empty"))
        if left and left.fds_after > left.fds_before and self._exclusive and not leaks:
            more = left.fds_after - left.fds_before
            before, after = (each.files if each else () for each in (self._execution.baseline, teardown.after))
            new = [*(Counter(after) - Counter(before)).elements()]
            why = f"open after taking down{f': {_joined(new)}' if new else ''}"
            leaks.append(Leak(plural(more, "file descriptor"), why))
        return tuple(leaks)

    def misplaced(self, geometries: Iterable[Geometry], left: Left | None) -> Iterator[Finding]:
        """Compare the free memory of each GPU while held with what the processes of a layout create there.

        A GPU with more free memory than that lacks a chunk, whatever the driver reports of the chunk. To omit what
        other programs free meanwhile, both the memory taken and the memory given back must be too little. More memory
        taken than planned is no difference: drivers and other programs take some.
        """
        fixed = (group for each in geometries for group in each.every if group.residence is Residence.FIXED)
        least = Counter[str]()
        for group in fixed:
            for location, count in group.shares().items():
                # A chunk takes its own size (fact 3); allocations below a block may share one (fact 45).
                least[str(location)] += count * (group.size - group.size % _BLOCK)
        for device in left.memory if left else ():
            if device.held is None or not (planned := least[device.device]):
                continue
            observed = max(device.before - device.held, device.after - device.held)
            expected = f"{rounded(planned)} or more less than before and after"
            seen = expected if observed >= planned else f"{rounded(observed)} less"
            yield Finding("free memory", device.device, expected, seen)

    def notes(self, teardown: Teardown, left: Left | None, geometry: Geometry, *, clean: bool) -> Iterator[str]:
        """Notes on the owners of external memory and semaphores, on what is left, and on processes that were late.

        `clean` adds that owners have no copy of a descriptor left.
        """
        for holder, process in self._holders.items():
            names = [
                group.name
                for group in geometry.every
                if group.produced and group.origin and group.origin.holders == (holder,)
            ]
            if names:
                several = len(names) > 1
                copies = "their descriptors were copied" if several else "its descriptor was copied"
                closed = f", and the {'copies' if several else 'copy'} closed" if clean else ""
                yield f"{_joined(names)} {'are' if several else 'is'} {holder}'s (process {process}); {copies}{closed}"

        if teardown.timed_out:
            yield "another process did not finish in time; memory that it imported may have been released while in use"
        yield from memory_notes(left, geometry)
        if not self._exclusive and left and left.fds_after > left.fds_before:
            more = left.fds_after - left.fds_before
            count = f"{more} more file descriptor{'s are' if more > 1 else ' is'} open than before"
            yield f"{count}; other code in this process may have opened {'them' if more > 1 else 'it'}"

    def _open_chunks(self, position_of: PositionOf) -> Iterator[Leak]:
        """Chunks with an open handle, as the ledger counts them.

        The driver is not queried: no call with a handle that may have been released is safe (facts 27, 51, 52).
        """
        counted = self._ledger.accounts["handles"]
        if not (still_open := [label for label, handle in self._handles.items() if handle in counted]):
            return
        steps = {step.describe().subject: step for step in self._execution.plan.steps if step.undoing.call == _RELEASE}
        for label in still_open:
            own = steps.get(label)
            step = own or steps.get(numbered(label)[0])  # elastic chunks have one step in common
            name, path = (own and own.leak_name()) or f"chunk {label}", step.path if step else ()
            yield Leak(name, "a handle to it is still open after its release", (), path, position_of(path))


def memory_notes(left: Left | None, geometry: Geometry) -> Iterator[str]:
    """Note the devices whose free memory differs from before, with the likely cause."""
    migrated = {
        f"gpu{device}"
        for group in geometry.every
        if group.residence is not Residence.FIXED
        for device in group.contexts
    }
    for device in left.memory if left else ():
        if device.after == device.before:
            continue
        less = device.before - device.after
        change = f"{device.device} has {abs(less):,} bytes {'less' if less > 0 else 'more'} free than before"
        if less > 0 and device.device in migrated:
            yield f"{change}; the driver keeps a block of managed memory until the process ends (fact 60)"
        else:
            yield f"{change}; another process may use it, or keep it by an open descriptor"


def _joined(names: Sequence[str]) -> str:
    return enumerated(first_words(names, _NAMED), "and")
