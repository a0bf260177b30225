"""Transitions of layouts of several processes, against a plain model of what exists in all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from memtopo.driver.types import gpu
from memtopo.kinds.mappings.steps import parts_of
from memtopo.kinds.step import Step
from memtopo.plans.transition import Action, Stage, Transition, transition, transitions
from tests.helpers import multi_process_strategies, strategies
from tests.helpers.examples import check_block, examples
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of

MACHINE = strategies.machine()
TWO = invented(2)
SHARED = """
processes:
  server:
    ranges: {w: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}, own: {location: gpu0, size: 2MiB}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    events: {e: {device: gpu0}}
    exports: {w: {chunk: w, via: fd}, e: {event: e, via: ipc}}
  reader:
    count: 2
    ranges: {v: {size: 8MiB}, mine: {size: 2MiB}}
    chunks: {mine: {location: gpu1, size: 2MiB}}
    imports: {w: {from: server.w}, e: {from: server.e}}
    map: {v: [w], mine: [mine]}
    access: {v: {gpu1: r}, mine: {gpu1: rw}}
"""

Steps = Mapping[str, Sequence[Step]]


def steps_of(text: str, machine: object = TWO) -> Steps:
    return {label: plan.steps for label, plan in plan_of(text, machine).processes.items()}  # type: ignore[arg-type]


def changed(old: str, new: str) -> dict[str, Transition]:
    return transitions(steps_of(SHARED), steps_of(SHARED.replace(old, new)))


def verbs(found: Transition, stage: Stage) -> list[str]:
    return [f"{action.step.verb} {action.step.describe().subject}" for action in found.stages[stage]]


def test_the_growth_is_that_of_the_peak_and_not_of_the_end() -> None:
    (step,) = (step for step in steps_of(SHARED)["reader.0"] if step.allocates)
    found = Transition.of([(Stage.CREATE, Action(step)), (Stage.BIND, Action(step, undo=True))])
    assert found.growth == {gpu(1): 2 << 20}


class Existing:
    """What exists in all processes: effects, and resources with the number of their creation."""

    def __init__(self, steps: Steps) -> None:
        self.effects = {label: {each.effect: each for each in made if _counts(each)} for label, made in steps.items()}
        self._number = 0
        self.resources: dict[tuple[str, object], int] = {}
        self.imported: dict[tuple[str, object], int] = {}
        for label, effects in self.effects.items():
            for step in effects.values():
                self._create(label, step)
        for label, effects in self.effects.items():
            for step in effects.values():
                self._import(label, step)

    def take(self, label: str, action: Action) -> None:
        for part in reversed(parts_of(action.step)):
            self._take_part(label, Action(part, action.undo))

    def _take_part(self, label: str, action: Action) -> None:
        step = action.step
        if not _counts(step):
            return
        if action.undo:
            assert self.effects[label].pop(step.effect) is not None
            self.imported.pop((label, step.effect), None)
            if step.provides is not None:
                users = [each for other in self._users(label, step.provides) for each in other]
                assert not users, (label, step, users)
                del self.resources[label, step.provides]
            return
        assert step.effect not in self.effects[label], (label, step)
        missing = [need for need in step.needs if self._is_created(need) and (label, need) not in self.resources]
        assert not missing, (label, step, missing)
        self.effects[label][step.effect] = step
        self._create(label, step)
        self._import(label, step)

    def stale(self) -> list[tuple[str, object]]:
        """Imports of a resource that is not the one which exists now."""
        steps = {(label, effect): step for label, made in self.effects.items() for effect, step in made.items()}
        return [key for key, number in self.imported.items() if number != self.resources.get(steps[key].imports)]  # type: ignore[arg-type]

    def _is_created(self, need: object) -> bool:
        """Return whether a step creates the resource: a process of the layout is attached without one."""
        return not (isinstance(need, tuple) and need[0] == "holder")

    def _users(self, label: str, resource: object) -> Iterator[list[Step]]:
        for other, made in self.effects.items():
            for step in made.values():
                if (other == label and resource in step.needs and not step.in_change.renews_needs) or step.imports == (
                    label,
                    resource,
                ):
                    yield [step]

    def _create(self, label: str, step: Step) -> None:
        if step.provides is not None:
            self._number += 1
            self.resources[label, step.provides] = self._number

    def _import(self, label: str, step: Step) -> None:
        if step.imports:
            self.imported[label, step.effect] = self.resources[step.imports]


def _counts(step: Step) -> bool:
    return step.effect is not None and not step.in_change.repeated


def follows_the_model(old: Steps, new: Steps) -> None:
    """Assert that each stage of the processes, one after another, uses only what exists, and ends with the new plan."""
    found = transitions(old, new)
    assert found == transitions(old, new)
    existing = Existing(old)
    for stage in Stage:
        for label, each in found.items():
            for action in each.stages[stage]:
                existing.take(label, action)
    assert {label: {*made} for label, made in existing.effects.items()} == {
        label: {step.effect for step in steps if _counts(step)} for label, steps in new.items()
    }
    assert not existing.stale()


def test_an_import_is_given_back_before_its_memory_is_replaced() -> None:
    found = changed("count: 2, handles", "count: 2, rdma: true, handles")
    for label in ("reader.0", "reader.1"):
        assert verbs(found[label], Stage.UNMAP) == ["map w.0 to w.1", "import w.1", "import w.0"]
        assert not found[label].stages[Stage.RELEASE]
        assert verbs(found[label], Stage.MAP)[:2] == ["import w.0", "import w.1"]
        assert "mine" not in " ".join(verbs(found[label], Stage.UNMAP))
    assert verbs(found["server"], Stage.RELEASE) == ["export w", "create w.1", "create w.0"]
    assert verbs(found["server"], Stage.CREATE) == ["create w.0", "create w.1", "export w"]


def test_processes_that_import_nothing_of_what_goes_are_not_touched() -> None:
    found = changed("own: {location: gpu0, size: 2MiB}", "own: {location: gpu0, size: 4MiB}")
    assert [label for label, each in found.items() if each.actions] == ["server"]


def test_an_import_is_replaced_if_its_export_names_other_objects() -> None:
    one = SHARED.replace("chunk: w, via", "chunk: w.0, via")
    found = transitions(steps_of(one), steps_of(one.replace("w.0", "w.1")))
    assert verbs(found["reader.1"], Stage.UNMAP) == ["map w", "import w"]
    assert verbs(found["reader.1"], Stage.MAP)[:2] == ["import w", "map w"]
    assert [verb for stage in (Stage.RELEASE, Stage.CREATE) for verb in verbs(found["server"], stage)] == [
        "export w",
        "export w",
    ]


def test_equal_plans_of_several_processes_need_no_action() -> None:
    assert not any(each.actions for each in transitions(steps_of(SHARED), steps_of(SHARED)).values())


def test_one_process_is_the_special_case() -> None:
    old, new = steps_of(SHARED)["server"], steps_of(SHARED.replace("own:", "other:"))["server"]
    assert transition(old, new) == transitions({"": old}, {"": new})[""]


def pairs(one: strategies.Spec, other: strategies.Spec) -> tuple[Steps, Steps]:
    texts = (f"processes: {json.dumps(each['processes'])}" for each in (one, other))
    old, new = (steps_of(text, MACHINE) for text in texts)
    return old, new


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(multi_process_strategies.pairs())
def test_a_joint_transition_uses_only_what_exists(both: tuple[strategies.Spec, strategies.Spec]) -> None:
    follows_the_model(*pairs(*both))


@pytest.mark.exhaustive(seconds=15)
@pytest.mark.parametrize("block", range(20))
def test_five_thousand_joint_transitions_use_only_what_exists(block: int) -> None:
    check_block(block, 250, lambda both: follows_the_model(*pairs(*both)), multi_process_strategies.pairs())


def test_released_memory_that_importers_keep_counts_in_the_growth_of_all_processes() -> None:
    """What another process has under the same name is free after its release."""
    after = SHARED.replace("size: 4MiB}}", "size: 8MiB}}").replace(
        "{w: {location: gpu0, size: 2MiB", "{w: {location: gpu0, size: 4MiB"
    )
    before, new = (plan_of(text, TWO).processes for text in (SHARED, after))
    steps = transitions(*({label: plan.steps for label, plan in plans.items()} for plans in (before, new)))
    kept = {("server", ("chunk", "w.0")), ("reader.0", ("chunk", "w.1"))}
    assert Transition.together(steps).growth == {gpu(0): 4 << 20}
    assert Transition.together(steps, kept).growth == {gpu(0): 6 << 20}
