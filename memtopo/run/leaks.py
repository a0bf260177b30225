"""What a run leaves: what was open before, while held and after, what could not be given back, and whose what is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from memtopo.diagnostics.model import Path
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.executor import Execution, Observation, Teardown
from memtopo.geometry import Geometry
from memtopo.kinds.steps import Step
from memtopo.plans.report import DeviceMemory, Leak, Left

_NAMED = 4
"""Things of one holder that a note names."""


@dataclass(slots=True)
class Remnants:
    """Looks at a run now and then, and tells in the end. The ledger is that of the run's driver.

    `place` is how a path reads, and `alone` whether nobody else in this process makes driver calls.
    """

    execution: Execution
    ledger: Ledger
    place: Callable[[Path], str | None]
    alone: bool
    _before: dict[str, int] = field(init=False)
    _held_ledger: dict[str, int] = field(default_factory=dict)
    _held: Observation | None = None
    _handles: dict[str, int] = field(default_factory=dict)
    _attached: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = self.ledger.counts()

    def while_held(self) -> None:
        """Look, now that everything stands. Raises `StepFailed`."""
        self._held_ledger = self.ledger.counts()
        self._held = self.execution.observe()

    def before_end(self) -> None:
        """Remember what is there, now that it is to be taken down."""
        layout = self.execution.layout
        self._handles, self._attached = dict(layout.chunks), dict(layout.attached)

    def left(self, teardown: Teardown, kept: int) -> Left | None:
        """What is left, without so many descriptors that are kept open on purpose."""
        before, held, after = self.execution.before, self._held, teardown.after
        if before is None or after is None:
            return None
        memory = tuple(
            DeviceMemory(f"gpu{device}", free, held.free[device] if held else None, after.free[device])
            for device, free in before.free.items()
        )
        ledger = self._before, self._held_ledger, self.ledger.counts()
        return Left(*ledger, before.fds, held.fds if held else None, after.fds - kept, memory)

    def leaks(self, teardown: Teardown, left: Left | None) -> tuple[Leak, ...]:
        """What could not be given back, by name as far as it has one."""
        leaks = [Leak(leak.what, leak.error, leak.stays, leak.path, self.place(leak.path)) for leak in teardown.leaks]
        if not leaks:
            leaks.extend(self._still_open(left))
        if not self.ledger.empty and not leaks:
            leaks.append(Leak("something that no step owns", "the ledger is not empty"))
        if left and left.fds_after > left.fds_before and self.alone and not leaks:
            more = left.fds_after - left.fds_before
            leaks.append(Leak(f"{more} file descriptor{'s' * (more > 1)}", "open after taking down"))
        return tuple(leaks)

    def owners(self, geometry: Geometry, *, clean: bool) -> Iterator[str]:
        """Whose is what another API made; where nothing leaked, also that nothing of it is kept."""
        for holder, process in self._attached.items():
            names = [run.name for run in geometry.foreign if run.origin.holders == (holder,)]
            if names:
                several = len(names) > 1
                copies = "their descriptors were copied" if several else "its descriptor was copied"
                back = f", and {'the copies' if several else 'the copy'} given back" if clean else ""
                yield f"{_listed(names)} {'are' if several else 'is'} {holder}'s (process {process}); {copies}{back}"

    def _still_open(self, left: Left | None) -> Iterator[Leak]:
        """Chunks that are still there although they were released, as the ledger says.

        Where memory is missing the driver is asked too, by releasing once more: that is refused for a handle that is
        not open any more, and the one question about it that a real driver survives (facts 27, 51, 52).
        """
        missing = self.alone and left and any(each.after < each.before for each in left.memory)
        paths = {step.leak_name(): step.path for step in self._steps}
        for label, handle in self._handles.items():
            counted = handle in self.ledger.handles
            if counted or (missing and self._released(handle)):
                told = (
                    "a handle to it is still open" if counted else "the driver still had a reference to it, now gone,"
                )
                path = paths.get(f"chunk {label}", ())
                yield Leak(f"chunk {label}", f"{told} after it was released", (), path, self.place(path))

    @property
    def _steps(self) -> tuple[Step, ...]:
        return self.execution.plan.steps

    def _released(self, handle: int) -> bool:
        """Whether there was one more reference to give back."""
        try:
            self.ledger.mem_release(handle)
        except DriverError:
            return False
        return True


def descriptors(left: Left | None) -> Iterator[str]:
    """That there are more descriptors than before, where they may be somebody else's in this process."""
    if left and left.fds_after > left.fds_before:
        more = left.fds_after - left.fds_before
        told = f"{more} file descriptor{'s are' if more > 1 else ' is'} open that {'were' if more > 1 else 'was'} not"
        yield f"{told}; something else in this process may have opened {'them' if more > 1 else 'it'}"


def free_memory(left: Left | None, geometry: Geometry) -> Iterator[str]:
    """Where a device has other free memory than before, and why that may be."""
    migrated = {f"gpu{device}" for run in geometry.managed.values() for device in run.gpus}
    for device in left.memory if left else ():
        if device.after == device.before:
            continue
        less = device.before - device.after
        told = f"{device.device} has {abs(less):,} bytes {'less' if less > 0 else 'more'} free than before"
        if less > 0 and device.device in migrated:
            yield f"{told}; the driver keeps a block of managed memory until the process ends (fact 60)"
        else:
            yield f"{told}; another process may use it"


def _listed(names: Sequence[str]) -> str:
    some = [*names[:_NAMED], *([f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])]
    return " and ".join([", ".join(some[:-1]), some[-1]]) if len(some) > 1 else some[0]
