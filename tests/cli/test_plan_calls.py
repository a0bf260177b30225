"""`memtopo plan` names the driver calls, and lists them with `--calls`."""

from __future__ import annotations

import json

from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

QUICKSTART = ROOT / "specs" / "quickstart.yaml"
HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = ("--machine", "h200x4")


def test_a_plan_names_the_call_of_each_row_with_its_flags(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", QUICKSTART, *M).out.splitlines()
    at = next(index for index, line in enumerate(lines) if "hot " in line)
    assert lines[at + 1].split() == ["cuMemCreate", "requestedHandleTypes=POSIX_FILE_DESCRIPTOR"]
    assert any(line.split() == ["cuMemAddressReserve", "alignment=2MiB"] for line in lines)


def test_a_narrow_terminal_has_the_calls_below_the_table(run_inline: InlineRunner) -> None:
    found = run_inline("plan", QUICKSTART, *M, COLUMNS="46").out
    assert "cuMemCreate" in found
    assert max(map(len, found.splitlines())) <= 46


def test_calls_are_listed_by_phase_with_their_arguments(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", QUICKSTART, *M, "--calls").out.splitlines()
    assert lines[0] == "calls  quickstart  on h200x4 (simulated)"
    assert "    cuMemAddressReserve(&kv, size=96MiB, alignment=2MiB, address=0, flags=0)" in lines
    assert "    cuMemMap(kv+32MiB, size=32MiB, offset=0, cold, flags=0)" in lines
    assert "    cuMemSetAccess(kv, size=96MiB, {gpu0 rw, gpu1 r})" in lines
    assert lines.index("  create") < lines.index("  take down")
    assert sum("cuMemCreate(" in line for line in lines) == sum("cuMemRelease(" in line for line in lines) == 18


def test_calls_of_several_processes_have_a_heading_each_and_their_exchanges(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", HAND_OVER, *M, "--calls").out.splitlines()
    assert lines.index("prefill") < lines.index("decode")
    assert "    /* send pages.31 to decode */" in lines
    assert "    cuMemImportFromShareableHandle(&page.31, prefill/pages.31, kind=POSIX_FILE_DESCRIPTOR)" in lines


def test_the_document_of_calls_has_sizes_in_bytes_and_names_for_handles(run_inline: InlineRunner) -> None:
    document = json.loads(run_inline("plan", QUICKSTART, *M, "--calls", "--json").out)
    (process,) = document["processes"]
    create = next(each for each in process["calls"] if each["function"] == "cuMemCreate")
    assert create["makes"] == "hot"
    assert create["arguments"]["size"] == 32 << 20
    assert create["arguments"]["properties"]["handles"] == ["fd"]
    release = [each for each in process["calls"] if each["function"] == "cuMemRelease"][-1]
    assert release["undo"]
    assert release["arguments"] == {"handle": "hot"}


def test_calls_of_a_change_are_not_listed(run_inline: InlineRunner) -> None:
    refused = run_inline("plan", "cache", QUICKSTART, "--calls")
    assert refused.status == 2
    assert "--calls" in refused.err
