"""Access: rules about peer access, for effective access to mapped chunks only."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.driver.types import Access, gpu
from memtopo.kinds.access import split_mappings
from memtopo.kinds.access.grants import peer_access
from memtopo.kinds.kind import Rule
from memtopo.kinds.mappings.steps import SHORT_GRANT, SetAccess
from memtopo.kinds.resources import RetainContext
from memtopo.machine import Machine, Trial
from memtopo.machine.queries import changed
from memtopo.plans.transition import transition
from tests.helpers.conducted import make_transition
from tests.helpers.line_count import executed_lines
from tests.helpers.machines import invented
from tests.helpers.specs import (
    clean_geometry,
    codes,
    diagnose,
    geometry_of,
    plan_of,
    run_request,
    steps_of,
    validate_text,
)
from tests.run.test_transition import built

APART = invented(2, peers=False)
HEAD = """
ranges: {kv: {size: 8MiB}}
chunks: {hot: {location: gpu0, size: 2MiB}, page: {location: [gpu0, gpu1], size: 2MiB, count: 4}}
"""


def test_the_host_and_its_nodes_have_one_access() -> None:
    text = "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: host:0, size: 2MiB}}\nmap: {kv: c}\n"
    text += "access: {kv: {ACCESS}}"
    of_node, of_host = (
        clean_geometry(text.replace("ACCESS", f"gpu0: r, {name}: rw")).parts["kv"] for name in ("host:0", "host")
    )
    assert of_node[0].grants == of_host[0].grants
    assert codes(text.replace("ACCESS", "host: rw, host:0: r")) == ["MT204"]


def test_the_work_for_many_parts_over_a_hole_is_linear() -> None:
    def work(many: int) -> int:
        text = f"ranges: {{kv: {{size: {4 * many}MiB}}}}\nchunks: {{c: {{location: gpu0, size: 2MiB}}}}\n"
        text += f"map: {{kv: [{', '.join(['c'] * many)}]}}\n"
        parts = (f"{{offset: {2 * (many + index)}MiB, size: 2MiB, grant: {{gpu1: r}}}}" for index in range(many))
        text += f"access: {{kv: [{{size: 2MiB, grant: {{gpu0: r}}}}, {', '.join(parts)}]}}"
        assert codes(text, APART) == []
        return executed_lines(lambda: codes(text, APART))

    assert work(600) < 2.3 * work(300)


@pytest.mark.parametrize("rule", [peer_access, split_mappings])
def test_the_work_for_access_to_whole_ranges_does_not_grow_with_their_number(rule: Rule) -> None:
    def work(count: int) -> int:
        text = (
            f"ranges: {{kv: {{size: 2MiB, count: {count}}}}}\n"
            f"chunks: {{page: {{location: [gpu0, gpu1], size: 2MiB, count: {count}}}}}\n"
            "map: {kv: [page]}\naccess: {kv: {gpu0: rw, gpu1: r}}\n"
        )
        geometry = geometry_of(text, invented(2))
        return executed_lines(lambda: list(rule(geometry, invented(2))))

    assert work(2) == work(20)


def test_devices_without_chunks_or_access_need_no_context() -> None:
    text = "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {kv: c}\n"
    made = run_request(text + "access: {kv: {gpu0: rw, gpu1: none}}", invented(2)).plan
    assert [step.device for step in made.steps if isinstance(step, RetainContext)] == [0]
    assert made.memory == {"gpu0": 2 << 20}


def test_equal_access_from_several_parts_is_one_call() -> None:
    parts = "{size: 4MiB, grant: {gpu0: r}}, {offset: 4MiB, size: 4MiB, grant: {gpu0: r}}"
    text = f"{HEAD}map: {{kv: page}}\naccess: {{kv: [{parts}]}}"
    found = validate_text(text)
    assert found.geometry is not None
    calls = [step for step in planner.plan(found.geometry, invented(2)).steps if step.call == "cuMemSetAccess"]
    assert len(calls) == 1


LOST = Trial(advertised=True, works=False)
REFUSED = Trial(advertised=None, works=False, error="CUDA_ERROR_NOT_PERMITTED")


def _with_lost_stores() -> Machine:
    made = invented(2)
    peers = [[peer and peer.model_copy(update={"store": LOST}) for peer in row] for row in made.peers]
    return changed(made, peers=peers)


def _without_host() -> Machine:
    made = invented(2)
    node = made.host["host:0"].model_copy(update={"trials": {"gpu": REFUSED}})
    return changed(made, host={**made.host, "host:0": node})


@pytest.mark.parametrize(
    ("made", "place", "grants", "expected", "note"),
    [
        (_with_lost_stores(), "gpu0", "{gpu1: r}", ["MT403"], "lost without an error"),
        (_with_lost_stores(), "gpu0", "{gpu0: rw}", [], ""),
        (_without_host(), "host:0", "{gpu1: r}", ["MT406"], "NOT_PERMITTED"),
        (_without_host(), "host:0", "{host: rw}", [], ""),
        (_without_host(), "host", "{gpu0: rw}", [], ""),
    ],
)
def test_a_failed_trial_of_access_refuses_the_grant(
    made: Machine, place: str, grants: str, expected: list[str], note: str
) -> None:
    text = f"ranges: {{kv: {{size: 2MiB}}}}\nchunks: {{hot: {{location: {place}, size: 2MiB}}}}\n"
    found = diagnose(f"{text}map: {{kv: hot}}\naccess: {{kv: {grants}}}", made)
    assert [each.code for each in found] == expected
    assert all(note in each.notes[0] for each in found)


def one_way() -> Machine:
    """A machine whose gpu0 can access the memory of gpu1, and not the other way round."""
    apart, peers = invented(2, peers=False), invented(2)
    return changed(peers, peers=[peers.peers[0], apart.peers[1]])


def stores_one_way() -> Machine:
    """A machine whose gpu0 can write to the memory of gpu1, while its stores to gpu0 are lost."""
    peers = invented(2)
    link = peers.peers[1][0]
    assert link
    return changed(peers, peers=[peers.peers[0], [link.model_copy(update={"store": LOST}), None]])


@pytest.mark.parametrize("machine", [one_way(), stores_one_way()])
@pytest.mark.parametrize(("owner", "user", "expected"), [("gpu1", "gpu0", []), ("gpu0", "gpu1", ["MT403"])])
def test_peer_access_of_one_gpu_is_not_that_of_the_other(
    machine: Machine, owner: str, user: str, expected: list[str]
) -> None:
    text = f"ranges: {{r: {{size: 2MiB}}}}\nchunks: {{c: {{location: {owner}, size: 2MiB}}}}\nmap: {{r: c}}\n"
    assert codes(f"{text}access: {{r: {{{user}: rw}}}}", machine) == expected


def test_peers_of_several_ranges_can_access_the_memory_of_all_of_them() -> None:
    text = "ranges: {r: {size: 2MiB, count: 2}}\nchunks: {c: {location: [gpu1, gpu0], size: 2MiB, count: 2}}\n"
    text += "map: {r: [{chunk: c, each: 1}]}\naccess: {r: {peers: rw}}\n"
    (part,) = clean_geometry(text, one_way()).parts["r"]
    assert [grant.location for grant in part.grants] == [gpu(0)]


def page_access(parts: str, count: int = 4) -> str:
    chunks = f"chunks: {{page: {{location: host:0, size: 2MiB, count: {count}}}}}\n"
    return f"ranges: {{kv: {{size: {2 * count}MiB}}}}\n{chunks}map: {{kv: page}}\naccess: {{kv: {parts}}}"


def test_a_change_of_access_takes_what_is_no_longer_granted_and_leaves_the_rest() -> None:
    before = page_access("{gpu0: rw, gpu1: r, host: r}")
    parts = "[{size: 4MiB, grant: {gpu0: rw, host: r}}, {offset: 4MiB, size: 4MiB, grant: {gpu0: rw, gpu1: rw}}]"
    after = page_access(parts)
    old, new = plan_of(before, invented(2)), plan_of(after, invented(2))
    grants = [step for step in transition(old.steps, new.steps).do if isinstance(step, SetAccess)]
    assert [(each.offset >> 20, each.size >> 20, each.describe().where) for each in grants] == [
        (0, 4, "gpu1 none"), (4, 4, "gpu1 rw, host none")
    ]  # fmt: skip
    with built(old, invented(2)) as layout:
        base, ledger = layout.execution.layout.address("kv"), layout.ledger
        make_transition(layout.execution, new)
        found = [[Access(ledger.mem_get_access(base + (at << 20), gpu(each))) for each in (0, 1)] for at in (0, 6)]
        assert found == [[Access.RW, Access.NONE], [Access.RW, Access.RW]]
        assert [each for each in layout.execution.check() if each.expected != each.observed] == []


def test_a_mapping_of_a_chunk_that_a_change_replaces_gets_its_access_again() -> None:
    before = page_access("{gpu0: rw, gpu1: r}")
    after = before.replace("location: host:0", "location: [host:0, gpu0]")
    old, new = plan_of(before, invented(2)), plan_of(after, invented(2))
    with built(old, invented(2)) as layout:
        base, ledger = layout.execution.layout.address("kv"), layout.ledger
        make_transition(layout.execution, new)
        addresses = [base + (at << 20) for at in (0, 2, 4, 6)]
        found = [[Access(ledger.mem_get_access(at, gpu(each))) for each in (0, 1)] for at in addresses]
        assert found == [[Access.RW, Access.R]] * 4
    grants = [step for step in transition(old.steps, new.steps).do if isinstance(step, SetAccess)]
    assert [(each.offset >> 20, each.size >> 20) for each in grants] == [(2, 2), (6, 2)]


def test_new_access_is_granted_to_a_limited_number_of_mappings_at_once_and_in_a_plan_to_a_thousand() -> None:
    count = 2 * SHORT_GRANT + 1
    old, new = (plan_of(page_access(grants, count), invented(2)) for grants in ("{gpu0: r}", "{gpu0: rw}"))
    changed_ = [step.size >> 21 for step in transition(old.steps, new.steps).do if isinstance(step, SetAccess)]
    assert changed_ == [SHORT_GRANT, SHORT_GRANT, 1]
    machine = invented(2, granule=1 << 20)
    texts = (page_access(grants, count).replace("size: 2MiB", "size: 1MiB") for grants in ("{gpu0: r}", "{gpu0: rw}"))
    old, new = (plan_of(text, machine) for text in texts)
    small = [step.size >> 20 for step in transition(old.steps, new.steps).do if isinstance(step, SetAccess)]
    assert small == [SHORT_GRANT, SHORT_GRANT, 1]  # of half the bytes
    calls = steps_of(plan_of(page_access("{gpu0: r}", 1001), invented(2)), SetAccess)
    assert [(each.offset >> 21, each.size >> 21) for each in calls] == [(0, 1000), (1000, 1)]
