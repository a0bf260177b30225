"""Names that kinds of entries share or not."""

from __future__ import annotations

import pytest

from tests.helpers.specs import codes, diagnose

NAMES = [
    ("chunks: {w: {location: gpu0, size: 2MiB}}", "buffers: {w: {location: gpu0, size: 2MiB}}", "buffers"),
    ("chunks: {w: {location: gpu0, size: 2MiB}}", "events: {w: {device: gpu0}}", "events"),
    ("buffers: {w: {location: gpu0, size: 2MiB}}", "events: {w: {device: gpu0}}", "events"),
    ("ranges: {w: {size: 2MiB}}", "buffers: {w: {location: gpu0, size: 2MiB}}", "buffers"),
    ("ranges: {w: {size: 2MiB}}", "imports: {w: {from: l/w, via: ipc, location: gpu0, size: 2MiB}}", "imports"),
    *(
        (taken, "imports: {w: {from: l/w, location: gpu0, size: 2MiB}}", "imports")
        for taken in (
            "chunks: {w: {location: gpu0, size: 2MiB}}",
            "buffers: {w: {location: gpu0, size: 2MiB}}",
            "events: {w: {device: gpu0}}",
        )
    ),
]


@pytest.mark.parametrize(("first", "second", "section"), NAMES)
@pytest.mark.parametrize("turned", [False, True])
def test_names_of_chunks_buffers_events_and_imports_are_distinct(
    first: str, second: str, section: str, *, turned: bool
) -> None:
    found = [
        diagnostic
        for diagnostic in diagnose("\n".join([second, first] if turned else [first, second]))
        if diagnostic.code < "MT5"
    ]
    assert [(diagnostic.code, diagnostic.path, diagnostic.at) for diagnostic in found] == [
        ("MT203", (section, "w"), "key")
    ]
    assert found[0].labels


@pytest.mark.parametrize(
    ("chunk", "more"),
    [
        ("w", "chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}\nexports: {w: {chunk: w, via: fd}}\n"),
        ("w", "imports: {w: {from: w/w, location: gpu0, size: 2MiB}}"),
        ("c", "chunks: {c: {location: gpu0, size: 2MiB}}\nevents: {w: {device: gpu0}}"),
    ],
)
def test_ranges_chunks_exports_and_devices_can_share_a_name(chunk: str, more: str) -> None:
    view = f"ranges: {{w: {{size: 2MiB}}}}\nmap: {{w: {chunk}}}\naccess: {{w: {{w: r}}}}\ndevices: {{w: gpu0}}\n"
    assert codes(view + more) == []
