"""A probe's page: the same facts for a terminal and in Markdown, in 80 columns and without a cut."""

from __future__ import annotations

import io
import re

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from rich.console import Console

from memtopo.machine import Copies, Machine, Peer, Rate, Trial
from memtopo.machine.queries import changed
from memtopo.output import ci, console, probe
from memtopo.output.blocks import Page, Section, Table, columns
from memtopo.probe import Times, Timing
from memtopo.probe.report import Comparison, ProbeReport, differences
from tests.helpers.machines import complete, invented, with_nodes

RATE = Rate(bytes_per_second=391_234_000_000, latency_ns=1830)


def shown(machine: Machine, name: str = "ours", *, simulated: bool = True, width: int = 80) -> str:
    return console.unstyled(probe.machine_page(machine, name, simulated=simulated), width)


def test_the_page_has_the_memory_of_the_host_and_its_limits() -> None:
    machine = with_nodes(complete(invented(1)), 64 << 30, 32 << 30, pinned=96 << 30)
    assert machine.surroundings
    limits = {"locked_bytes": 8 << 20, "group_bytes": 16 << 30}
    text = shown(changed(machine, surroundings=machine.surroundings.model_copy(update=limits)), width=200)
    assert "host memory: 96 GiB, host:0 64 GiB, host:1 32 GiB, 96 GiB may be page-locked" in text
    assert "RLIMIT_MEMLOCK 8 MiB, control group limited to 16 GiB" in text
    assert "host memory" not in shown(invented(1))


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def measured(gpus: int) -> Machine:
    machine = complete(invented(gpus))
    rates = Copies(engine_write=RATE, engine_read=RATE, sm_write=RATE, sm_read=RATE)
    peers = [[peer and peer.model_copy(update={"link": "NV", "links": 18, "copies": rates}) for peer in row]
             for row in machine.peers]  # fmt: skip
    devices = [device.model_copy(update={"copies": rates}) for device in machine.devices]
    return changed(machine, peers=peers, devices=devices)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("gpus", [0, 1, 2, 8, 16])
def test_no_line_exceeds_the_terminal_and_no_word_is_cut(gpus: int, width: int) -> None:
    for machine in (complete(invented(gpus)), invented(gpus), measured(min(gpus, 8))):
        text = shown(machine, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert "None" not in text


def test_a_matrix_of_eight_gpus_has_a_line_for_each_at_80_columns() -> None:
    assert ["gpu7", *["█", "391.2"] * 7, "-"] in rows(shown(measured(8)))
    assert ["gpu7", *["391.2"] * 7, "-"] in rows(shown(measured(8), width=60))


def uneven() -> Machine:
    """Two pairs of GPUs that are joined by NVLink, with the system between them; one way was not measured."""
    machine = measured(4)

    def peer(a: int, b: int, found: Peer) -> Peer:
        near = a // 2 == b // 2
        rate = Rate(bytes_per_second=400_000_000_000 if near else 190_000_000_000 if a > b else 40_000_000_000)
        copies = None if (a, b) == (0, 3) else Copies(engine_write=rate)
        link = {"link": "NV", "links": 18} if near else {"link": "SYS", "links": None}
        return found.model_copy(update={**link, "copies": copies})

    peers = [[each and peer(a, b, each) for b, each in enumerate(row)] for a, row in enumerate(machine.peers)]
    return changed(machine, peers=peers)


def test_a_cell_is_shaded_by_its_share_of_the_fastest_pair() -> None:
    """An unmeasured pair is neither listed nor shaded."""
    found = rows(shown(uneven()))
    assert ["gpu0", "-", "█", "400.0", "40.0", "?"] in found
    assert ["gpu2", "▒", "190.0", "▒", "190.0", "-", "█", "400.0"] in found
    assert ["gpu1", "█", "NV18", "-", "SYS", "SYS"] in found
    assert "█" not in "\n".join(ci.page_lines(probe.machine_page(uneven(), "ours")))


def test_a_heat_map_without_blocks_is_shaded_by_other_marks() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console.show(probe.machine_page(uneven(), "ours"), stream, width=80)
    stream.seek(0)
    assert ["gpu2", "+", "190.0", "+", "190.0", "-", "#", "400.0"] in rows(stream.read())


def test_the_colour_of_a_cell_follows_its_share() -> None:
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    terminal.print(console.rendered(probe.machine_page(uneven(), "ours")))
    assert isinstance(terminal.file, io.StringIO)
    printed = terminal.file.getvalue()
    styles = {number: re.search(rf"\x1b\[([0-9;]*)m[ █▓▒░]*{number}", printed) for number in ("400.0", "190.0", "40.0")}
    assert len({each[1] for each in styles.values() if each}) == 3


def test_the_first_line_names_a_simulation() -> None:
    assert "ours (simulated): " in shown(invented(2)).splitlines()[0]
    assert "simulated" not in shown(invented(2), simulated=False)


def test_advertised_and_works_are_two_columns() -> None:
    """Equal GPUs are one entry, and the driver's error is in the line of the method."""
    found = rows(shown(complete(invented(4)), width=100))
    assert ["gpu0", "to", "gpu3", "vmm", "yes", "yes"] in found
    assert ["fabric", "yes", "no", "NOT_PERMITTED"] in found
    assert ["multicast", "no", "not", "tried", "others", "share", "its", "switch"] in found


def test_a_cause_of_several_failures_is_one_line() -> None:
    text = shown(complete(invented(2)))
    assert "fabric on gpu0, gpu1: CUDA_ERROR_NOT_PERMITTED\n  likely: there is no IMEX channel\n" in text
    assert "fd+fabric, pool-fabric on gpu0, gpu1: cuMemCreate: CUDA_ERROR_NOT_PERMITTED" in text


def test_granularity_that_is_the_same_for_all_is_one_line() -> None:
    text = " ".join(shown(invented(2)).split())
    assert "gpu0, gpu1, host, host:0: 2 MiB minimum and recommended for every set of properties queried" in text


def test_granularity_that_differs_is_a_row_for_each_set() -> None:
    """Fact 1."""
    device = invented(1).devices[0]
    first, *rest = device.memory.granularity
    memory = device.memory.model_copy(
        update={"granularity": [first.model_copy(update={"recommended": 4 << 20}), *rest]}
    )
    text = shown(changed(invented(1), devices=[device.model_copy(update={"memory": memory})]))
    assert ["gpu0", "none", "no", "no", "2", "MiB", "4", "MiB"] in rows(text)


def test_pairs_that_differ_are_a_matrix() -> None:
    """Equal pairs are one line; a lost store is in the cell of its pair."""
    machine = complete(invented(3))
    assert ["a", "kernel's", "store", "arrives"] in rows(shown(machine))
    assert machine.peers[1][2]
    lost = machine.peers[1][2].model_copy(update={"store": Trial(advertised=True, works=False)})
    text = shown(changed(machine, peers=[machine.peers[0], [machine.peers[1][0], None, lost], machine.peers[2]]))
    assert ["gpu1", "arrives", "-", "LOST"] in rows(text)


def test_a_record_without_trials_says_so() -> None:
    machine = invented(1)
    memory = machine.devices[0].memory.model_copy(update={"trials": {}})
    text = shown(changed(machine, devices=[machine.devices[0].model_copy(update={"memory": memory})], host={}))
    assert "gpu0: not tried" in text


def test_names_from_a_file_are_printed_literally() -> None:
    """Neither as markup nor as control sequences."""
    text = shown(invented(1, name="[red]GPU\x1b[2J"), "[bold]x")
    assert "[red]GPU\\x1b[2J" in text
    assert "[bold]x" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["a|b", "<b>x</b>", "![x](http://x)", "# x", "`x`", "@you", "#1", "*x*", "www.x.de"])
def test_names_from_a_file_are_literal_in_markdown(name: str) -> None:
    page = probe.machine_page(invented(1, name=name), "ours")
    drawn = MarkdownIt("gfm-like", {"linkify": False}).render("\n".join(ci.page_lines(page)))
    cell = drawn.split("<td>gpu0</td>\n<td>")[1].split("</td>")[0]
    assert cell.replace("&lt;", "<").replace("&gt;", ">") == name
    assert "<b>" not in drawn


def test_markdown_has_every_table_of_the_terminal() -> None:
    page = probe.machine_page(measured(2), "ours", simulated=True)
    lines = ci.page_lines(page)
    assert lines[0].startswith("## ours ")
    assert "| gpu0, gpu1 | Invented GPU | 9.0 | 80 GiB |" in lines
    tables = MarkdownIt("gfm-like", {"linkify": False}).render("\n".join(lines)).count("<table>")
    assert tables == sum(not isinstance(block, str) for section in page.sections for block in section.blocks)


def test_a_comparison_is_a_table_that_marks_relevant_differences() -> None:
    old, new = complete(invented(2)), complete(invented(1))
    lines = ci.page_lines(Page("probe", "ours", sections=[probe.against(differences(old, new), "theirs")]))
    assert lines[2] == "### against theirs"
    assert "| gpu1 | GPU | Invented GPU | none | no |" in lines
    assert lines[-1] == "1 difference may make a valid spec fail here"
    assert ci.page_lines(Page("probe", "ours", sections=[probe.against([], "theirs")]))[-1] == "nothing differs"


def test_a_text_below_a_table_has_a_blank_line_before_it() -> None:
    table = Table(columns("", "x"), [("a", "1")])
    page = Page("probe", "ours", sections=[Section("measured", [table, "next", table, "  hint"])])
    lines = [" ".join(line.split()) for line in console.unstyled(page, 80).splitlines()]
    assert lines == ["probe ours", "", "measured", "x", "a 1", "", "next", "x", "a 1", "hint"]


def test_the_page_of_a_probe_has_its_notes_what_is_left_and_the_longest_trials_first() -> None:
    machine, times = complete(invented(1)), Times(3.0, 1.0, 0.5, (Timing("a", "gpu0", 0.1), Timing("b", "gpu0", 0.2)))
    report = ProbeReport(1, "ours", False, machine, (), None, ("a note",), (), times)
    trials = [trial for memory in machine.locations.values() for trial in memory.trials.values()]
    worked = sum(bool(trial.works) for trial in trials)
    assert worked < len(trials)
    assert probe.page(report).verdict == (f"{worked} of {len(trials)} trials work", "good")
    left = probe.page(replace(report, left=("process 7",)))
    assert left.verdict == ("processes are left: 1", "bad")
    assert [*left.facts[-2:]] == ["note: a note", "note: process 7"]
    for fits, tone in ((True, "good"), (False, "bad")):
        page = probe.page(replace(report, against=Comparison("h200x2", fits, ())))
        assert page.verdict is not None
        assert page.verdict.tone == tone
        assert page.sections[-1].title == "against h200x2"
    words, table = probe.full_page(report).sections[-1].blocks
    assert isinstance(table, Table)
    assert words == "3 s in all; the slowest child took 1 s to start, and the contexts 500 ms."
    assert [row[0] for row in table.rows] == ["b", "a"]


@pytest.mark.parametrize(
    ("store", "word"),
    [
        (Trial(works=True), "arrives"), (Trial(works=False), "LOST"), (Trial(works=None), "not known"),
        (Trial(works=False, error="CUDA_ERROR_UNKNOWN"), "refused"),
    ],
)  # fmt: skip
def test_a_store_arrives_or_is_refused_or_lost(store: Trial, word: str) -> None:
    machine = complete(invented(2))
    peers = [[peer and peer.model_copy(update={"store": store}) for peer in row] for row in machine.peers]
    assert any(line.split(maxsplit=3)[3:] == [word] for line in shown(changed(machine, peers=peers)).splitlines())
