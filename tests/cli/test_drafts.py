"""Drafts of machines that nobody probed: published figures, no trials, and the features that a spec uses untried."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.driver.types import HandleType, Properties, gpu
from memtopo.machine import dump, load, parse
from memtopo.machine.drafts import draft, models, untried, watched
from tests.cli.conftest import InlineRunner

SPEC = """
memtopo: 1
name: test
ranges: {{kv: {{size: fill}}}}
chunks: {{page: {{location: {location}, size: 2MiB, count: 4{more}}}}}
map: {{kv: [page]}}
access: {{kv: {{{users}: rw}}}}
"""


@pytest.mark.parametrize("like", [None, *models(), "h100x1", "h200x8"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_draft_is_a_record_without_trials_that_names_its_sources(like: str | None, gpus: int) -> None:
    made = draft(gpus, 80 << 30, like)
    assert parse(dump(made).encode(), "draft.json") == made
    assert len(made.devices) == gpus
    assert {device.memory_bytes for device in made.devices} == {80 << 30}
    assert not any(memory.trials for memory in made.locations.values())
    assert not any(made.store(a, b) for a in range(gpus) for b in range(gpus))
    assert bool(made.estimated) == (like is not None)


def test_every_figure_of_a_model_has_a_page_of_nvidia() -> None:
    assert set(models()) == {"a100-40gb", "a100-80gb", "b200", "gb200-nvl4", "h20", "l40s"}
    for model in models().values():
        assert model.sources
        assert all("nvidia.com/" in source for source in model.sources)


def test_a_draft_like_a_recorded_machine_has_its_links_and_granularities() -> None:
    made, recorded = draft(4, None, "h200x8"), load("h200x8")
    device, peer = made.devices[3], made.peers[3][0]
    assert (device.name, device.memory_bytes) == ("NVIDIA H200", recorded.devices[0].memory_bytes)
    assert made.granularity(Properties(gpu(0), HandleType.FD)) == recorded.granularity(
        Properties(gpu(0), HandleType.FD)
    )
    assert peer
    assert (peer.link, peer.links, peer.store, peer.copies) == ("NV", 18, None, None)


@pytest.mark.parametrize(
    ("location", "more", "users", "expected"),
    [
        ("gpu0", "", "gpu0", "estimated"),
        ("gpu0", ", handles: fd", "gpu0", "estimated: fd not tried"),
        ("gpu0", ", handles: fd, rdma: true", "gpu1", "estimated: fd, rdma, store not tried"),
        ("host:0", ", handles: fd", "gpu0", "estimated: fd of host:0, gpu of host:0 not tried"),
    ],
)
def test_a_valid_spec_names_the_features_that_it_uses_and_nobody_tried(
    run_inline: InlineRunner, tmp_path: Path, location: str, more: str, users: str, expected: str
) -> None:
    record, spec = tmp_path / "a100x8.json", tmp_path / "test.yaml"
    spec.write_text(SPEC.format(location=location, more=more, users=users))
    assert run_inline("machines", "--draft", record, "--gpus", "8", "--like", "a100-80gb").status == 0
    result = run_inline("validate", spec, "--machine", record)
    assert (result.status, result.out) == (0, f"{spec}: ok on {record} ({expected})\n")
    for command in ("plan", "apply", "budget"):
        told = run_inline(command, spec, "--machine", record)
        assert (told.status, "(simulated, estimated)" in " ".join(told.out.split())) == (0, True)
    both = run_inline("validate", spec, "--machine", record, "--machine", "h200x2")
    assert both.out.endswith(f": 1 ok; {record} is {expected}\n")
    assert [each["untried"] for each in both_json(run_inline, spec, record)] == [
        expected.removeprefix("estimated").removeprefix(": ").removesuffix(" not tried").split(", ")
        if ":" in expected
        else [],
        None,
    ]


def both_json(run_inline: InlineRunner, spec: Path, record: Path) -> list[dict[str, object]]:
    """The results of a validation on a draft and on a recorded machine."""
    found = run_inline("validate", spec, "--machine", record, "--machine", "h200x2", "--json").document["results"]
    assert isinstance(found, list)
    return found


def test_a_probed_machine_is_not_watched() -> None:
    recorded = load("h200x2")
    assert watched(recorded) is recorded
    assert untried(recorded) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft", "new"], "the draft has no number of GPUs"),
        (["--draft", "new", "--gpus", "8"], "the draft has no memory of a GPU"),
        (["--draft", "new", "--gpus", "8", "--like", "a100"], "hint: write one of a100-40gb, a100-80gb"),
        (["--draft", "new", "--gpus", "8", "--memory", "80"], "hint: write 80"),
        (["--draft", "new", "--gpus", "8", "--memory", "2granules"], "--memory 2granules is no amount of memory"),
        (["--draft", "old", "--gpus", "8", "--memory", "80GiB"], "'old.json' exists"),
        (["--gpus", "8"], "hint: name it, with its GPUs: --draft NAME --gpus 8"),
        (["old"], "hint: to read the file of that name, write old.json"),
        (["a100x8"], "memtopo machines --draft NAME --gpus 8"),
    ],
)
def test_a_draft_that_cannot_be_written_says_what_is_missing(
    run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.json").touch()
    result = run_inline("machines", *arguments)
    assert result.status in (2, 3)
    assert message in result.err
    assert not Path("new.json").exists()
