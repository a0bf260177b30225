"""Metrics as text, read by the parser of Prometheus' own client library."""

from __future__ import annotations

import re

import pytest
import yaml
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from memtopo.output import monitoring
from memtopo.sharing.held import Entry
from memtopo.sharing.offers import Lending, Offer
from memtopo.sharing.status import CheckResult, HeapUse, LocationMemory, Statistics, Taken
from tests.helpers import pages
from tests.helpers.command_line import ROOT
from tests.output.test_held import IMPORTER, STATUS

STATISTICS = Statistics((LocationMemory("gpu0", "GPU-1", 1 << 60, 7),), 3, 1, CheckResult(1_767_225_600.25, 2), 9, 99)
NOW = 1_767_225_601
POOL = Offer("pool", "chunk", "fd", 64, 2 << 20, "gpu0", lends=Lending(16, 4, (), 5, 2))
BORROWER = replace(IMPORTER, taken=(*IMPORTER.taken, Taken("pool", "chunk", "fd", 3, 6 << 20)))
FULL = replace(
    STATUS,
    layout_state="asleep",
    layout_states=("awake", "asleep"),
    generation=5,
    offers=(*STATUS.offers, POOL),
    importers=(BORROWER,),
    heaps=(HeapUse("rank.0", "weights", 2, 8 << 20, 0),),
)


def test_a_parser_of_prometheus_finds_every_metric_with_its_type() -> None:
    """Every metric is in docs/metrics.md with its type."""
    page = monitoring.metrics([(FULL, STATISTICS), (replace(FULL, name="other"), None)], now=NOW)
    found = {family.name: family.type for family in text_string_to_metric_families(page)}
    known = {name.removesuffix("_total"): kind for name, (kind, _) in monitoring.FAMILIES.items()}
    assert found == known
    documented = re.findall(
        r"^\| `(memtopo_\w+)` \| (\w+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    assert dict(documented) == {name: kind for name, (kind, _) in monitoring.FAMILIES.items()}


def test_alerts_of_the_docs_are_about_metrics_that_exist() -> None:
    (rules,) = [block for block in pages.of("yaml") if block.info == "prometheus"]
    alerts = [rule for group in yaml.safe_load(rules.text)["groups"] for rule in group["rules"]]
    named = {name for rule in alerts for name in re.findall(r"memtopo_\w+", rule["expr"])}
    assert "memtopo_layout_heartbeat_time_seconds" in named
    assert named <= set(monitoring.FAMILIES)


def test_values_are_read_back_without_loss() -> None:
    page = monitoring.metrics([(FULL, STATISTICS)], now=NOW)
    samples = {
        (sample.name, sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["memtopo_memory_bytes", "asleep"] == 1 << 60
    assert samples["memtopo_layout_heartbeat_time_seconds", ""] == NOW
    assert samples["memtopo_last_check_time_seconds", ""] == 1_767_225_600.25
    assert (samples["memtopo_layout_state", "asleep"], samples["memtopo_layout_state", "awake"]) == (1, 0)
    assert samples["memtopo_layout_deadline_seconds", ""] == FULL.deadline
    lent = [samples[f"memtopo_{name}", ""] for name in ("lent_most", "lent", "sealed", "importer_lent")]
    assert lent == [64, 5, 2, 3]
    assert samples["memtopo_allocations", "asleep"] == 7
    others = {
        "exports": 4, "exported_bytes": (33 << 30) + (14 << 20), "importers": 1, "clients_total": 9,
        "handles_total": 99, "last_check_differences": 2, "layout_generation": 5, "layout_serving": 1,
        "heap_allocations": 2, "heap_allocated_bytes": 8 << 20, "heap_memory_bytes": 0, "importer_handles": 17,
        "importer_bytes": 33 << 30, "importer_bound": 1, "layout_start_time_seconds": FULL.since,
    }  # fmt: skip
    assert {name: samples[f"memtopo_{name}", ""] for name in others} == others


def test_changes_are_counted_by_result_and_a_layout_without_states_is_awake() -> None:
    page = monitoring.metrics([(replace(FULL, layout_state=None, layout_states=()), STATISTICS)], now=NOW)
    counts = f'result="made"}} {STATISTICS.changes}\n', f'result="rolled_back"}} {STATISTICS.rolled_back}\n'
    assert all(count in page for count in counts)
    assert 'gpu="GPU-1",state="awake"} 7\n' in page


def test_only_what_is_lent_is_counted_as_lent() -> None:
    page = monitoring.metrics([(FULL, STATISTICS)], now=NOW)
    lent = [
        (sample.labels["export"], sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("memtopo_lent", "memtopo_importer_lent")
    ]
    assert lent == [("pool", 5), ("pool", 3)]


def test_samples_of_one_metric_stand_together_for_all_layouts() -> None:
    """Each has its help and type once."""
    page = monitoring.metrics([(FULL, STATISTICS), (replace(FULL, name="other"), STATISTICS)], now=NOW)
    names = [re.split("[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")]
    assert [name for at, name in enumerate(names) if name not in names[:at]] == list(dict.fromkeys(names))
    assert names == sorted(names, key=list(monitoring.FAMILIES).index)
    assert page.count("# TYPE memtopo_layout_generation ") == 1


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", 'x"} 1\nevil{y="', "\x1b[31m", "\udc80", "ä"])
def test_a_name_cannot_end_its_label(name: str) -> None:
    page = monitoring.metrics([(replace(FULL, spec=name), None)], [Entry(name, "unreachable", "/x")], now=NOW)
    page.encode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert set(families) <= {each.removesuffix("_total") for each in monitoring.FAMILIES}
    assert len(families["memtopo_layout_info"].samples) == 1
    assert [sample.value for sample in families["memtopo_layout_up"].samples] == [1, 0]


def test_a_holder_without_an_answer_is_down() -> None:
    page = monitoring.metrics([], [Entry("kv", "unreachable", "/run/kv.sock", error="no answer")], now=NOW)
    assert page.splitlines()[-1] == 'memtopo_layout_up{layout="kv"} 0'
    assert monitoring.metrics([], now=NOW).startswith(monitoring.FIRST)
    releasing = monitoring.metrics([(replace(FULL, state="releasing"), None)], now=NOW)
    assert f'memtopo_layout_serving{{layout="{FULL.name}"}} 0\n' in releasing


def test_a_process_of_another_pid_namespace_has_no_number() -> None:
    """An importer of a holder in another one has a number there, which is none here."""
    assert ',importer="3",pid="4712",uid="1000"}' in monitoring.metrics([(FULL, None)], now=NOW)
    page = monitoring.metrics([(replace(FULL, pid=None, pid_namespace="another"), None)], now=NOW)
    assert "4712" not in page
    assert ',pid="",' in page
