"""Validation without a machine: what is wrong on every machine, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.diagnostics.model import Diagnostic
from memtopo.language import read_file
from memtopo.machine import load
from memtopo.rules import validate, validate_without_machine
from tests.helpers.machines import noted
from tests.helpers.specs import ROOT, document
from tests.rules.test_bad import BAD


def spec(chunk: str) -> str:
    return (
        f"ranges: {{kv: {{size: 64MiB}}}}\nchunks: {{a: {{{chunk}}}}}\nmap: {{kv: [a]}}\naccess: {{kv: {{gpu0: rw}}}}\n"
    )


def identities(found: tuple[Diagnostic, ...]) -> set[object]:
    return {(each.code, each.path, each.at, each.span) for each in found}


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_everything_that_is_reported_is_reported_on_a_machine_too(path: Path) -> None:
    found = read_file(path)
    machine = noted(path.read_text(errors="replace"))
    without = validate_without_machine(found)
    assert without.geometry is None
    assert identities(without.diagnostics) <= identities(validate(found, machine).diagnostics)


NEED_A_MACHINE = """
    address-unaligned beside-a-context buffer-on-the-host chunk-granularity
    dma-buf-of-a-compressible-chunk dma-buf-of-the-host dma-buf-through-pcie elastic-beyond-memory
    elastic-min-above-a-share elastic-without-peer-access external-on-the-host
    fabric-between-unknown-nodes fabric-refused fill-of-unequal-parts heap-fabric heap-size heap-too-large
    host-on-gpu-memory
    host-out-of-memory host-rdma host-with-handle import-fabric-refused managed-beside-chunks
    managed-beyond-the-host managed-on-no-gpu managed-too-large managed-unseen
    multicast-bound-unaligned multicast-fabric-refused multicast-granularity multicast-never-tried
    multicast-not-advertised multicast-on-the-host multicast-without-peers near-a-gpu-without
    no-alternative-works no-peer-access no-such-gpu node-without-a-machine offloaded-beyond-the-host
    offset-granularity out-of-memory pinned-beyond-the-host pinned-by-the-host
    pool-accessed-by-the-host range-granularity rdma-and-compressible set-without-peers sets-overlap
    share-of-unknown-memory share-without-room shares-above-the-whole stride-granularity
    too-much-in-all-processes unseen-event unseen-gpu win32-on-linux zero-chunk-on-the-host
"""


def test_wrong_examples_are_wrong_without_a_machine_unless_they_need_one() -> None:
    """Those that remain need granularities, devices, memory or what these support."""
    remaining = {path.stem for path in BAD if not validate_without_machine(read_file(path)).diagnostics}
    assert remaining == {*NEED_A_MACHINE.split()}


def test_no_valid_spec_is_reported() -> None:
    for path in sorted((ROOT / "specs").rglob("*.yaml")):
        assert not validate_without_machine(read_file(path)).diagnostics, path


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        ("location: gpu0, size: 3MiB", "MT301"),
        ("location: gpu40, size: 2MiB", "MT401"),
        ("location: gpu0, size: 64MiB, handles: [fabric]", "MT404"),
        ("location: gpu0, size: 33 granules", "MT305"),
        ("location: gpus, size: 64MiB", "MT305"),
        ("location: gpu0, size: 90%", "MT305"),
    ],
)
def test_what_depends_on_a_machine_is_not_reported(chunk: str, code: str) -> None:
    found = document(spec(chunk))
    assert [each.code for each in validate(found, load("h200x2")).diagnostics] == [code]
    assert not validate_without_machine(found).diagnostics


def test_arithmetic_of_sizes_is_checked() -> None:
    (found,) = validate_without_machine(document(spec("location: gpu0, size: 66MiB"))).diagnostics
    assert (found.code, found.path) == ("MT305", ("map", "kv", 0))


@pytest.mark.parametrize(
    ("name", "code"), [("heap-limit-beyond-addresses", "MT811"), ("parts-beyond-their-chunk", "MT313")]
)
def test_help_with_values_of_a_machine_is_left_out(name: str, code: str) -> None:
    found = read_file(ROOT / "tests" / "bad" / f"{name}.yaml")
    with_machine, without = (
        next(each for each in checked.diagnostics if each.code == code)
        for checked in (validate(found, load("h200x2")), validate_without_machine(found))
    )
    assert without.message == with_machine.message
    assert (with_machine.help is None, without.help) == (False, None)


def test_notes_with_values_of_a_machine_are_left_out() -> None:
    text = (ROOT / "tests" / "bad" / "multicast-bound-unaligned.yaml").read_text().replace("1MiB", "4KiB")
    with_machine, without = (
        next(each for each in checked.diagnostics if each.code == "MT720")
        for checked in (validate(document(text), noted(text)), validate_without_machine(document(text)))
    )
    assert without.message == with_machine.message
    assert (len(with_machine.notes), without.notes) == (1, ())


def test_a_comment_is_used_if_it_is_on_any_machine() -> None:
    """One of a large granularity, and one of little memory."""
    comments = {"size: 64KiB": "MT301", "size: 512GiB": "MT402"}
    for size, code in comments.items():
        text = spec(f"location: gpu0, {size}").replace("\nmap", f"  # memtopo: ignore[{code}]\nmap")
        (used,) = validate_without_machine(document(text)).used
        assert text.splitlines()[1].find(code) + 1 == used.column


def test_comments_about_machines_are_not_reported_as_unused() -> None:
    text = spec("location: gpu0, size: 64MiB").replace("\nmap", "  # memtopo: ignore[MT402]\nmap")
    assert [each.code for each in validate(document(text), load("h200x2")).diagnostics] == ["MT505"]
    assert not validate_without_machine(document(text)).diagnostics
