"""Style sheet of the pages: shapes, and the colours of a light and a dark scheme."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.output.diagram.context import DARK, LIGHT, Scheme
from memtopo.output.diagram.html import FIGURE_STYLE, TABLE_STYLE
from memtopo.output.diagram.markup import MONO_FONTS, SANS_FONTS

HEAT = (
    ("#440154", "#ffffff"), ("#472d7b", "#ffffff"), ("#3b528b", "#ffffff"), ("#2c728e", "#ffffff"),
    ("#1f7f79", "#ffffff"), ("#28ae80", "#000000"), ("#5ec962", "#000000"), ("#addc30", "#000000"),
    ("#fde725", "#000000"),
)  # fmt: skip
"""Colours of viridis for the least to the most, which ascend in brightness, each with that of a text on it."""

_GOOD, _BAD, _WARN = ("#00573f", "#6fdab6"), ("#a3212a", "#ff9b95"), ("#7f5200", "#ffcc66")
"""Colours of words for success, failure and interruption, in the light and in the dark scheme."""

_SHAPES = f"""
*{{box-sizing:border-box}}
html{{color-scheme:light dark;-webkit-text-size-adjust:100%}}
body{{margin:0 auto;padding:32px 16px 64px;max-width:1168px;font:15px/1.5 {SANS_FONTS};
background:var(--paper);color:var(--ink)}}
h1{{font-size:30px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}}
h2{{font-size:19px;margin:44px 0 2px}}
p{{margin:0;overflow-wrap:anywhere}}
.soft,th,td::before{{color:var(--muted)}}
th,td,tr{{border-color:var(--line)}}
.kicker{{font:600 12px/1.4 {SANS_FONTS};letter-spacing:.06em;color:var(--muted)}}
.verdict{{margin:20px 0 0;padding:12px 16px;border-radius:8px;background:var(--card);border:1px solid var(--line);
border-left:6px solid var(--tone);font-weight:600;color:var(--tone)}}
.good{{--tone:var(--good)}}.bad{{--tone:var(--bad)}}.warn{{--tone:var(--warn)}}
td.good,td.bad,td.warn{{color:var(--tone);font-weight:600}}
.facts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(168px,1fr));gap:12px;margin:16px 0 0}}
.facts>div{{padding:12px 16px;border-radius:8px;background:var(--card);border:1px solid var(--line)}}
.facts p:first-child{{font-size:12px;color:var(--muted)}}
.facts p:last-child{{font-size:19px;line-height:1.3;font-weight:600}}
.tables{{display:grid;gap:28px;margin-top:16px;grid-template-columns:minmax(0,1fr)}}
footer{{margin-top:56px;font-size:12px}}
.note{{margin-top:10px;color:var(--muted)}}
ul{{margin:10px 0 0;padding:0 0 0 20px}}li{{overflow-wrap:anywhere}}
dl{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:6px 20px;margin:14px 0 0;padding:14px 16px;
border-radius:8px;background:var(--card);border:1px solid var(--line)}}
dt{{color:var(--muted)}}dd{{margin:0;overflow-wrap:anywhere;font:13px/1.6 {MONO_FONTS}}}
pre{{margin:14px 0 0;padding:14px 16px;border-radius:8px;background:var(--card);border:1px solid var(--line);
font:13px/1.5 {MONO_FONTS};white-space:pre-wrap;overflow-wrap:anywhere}}
td.number,th.number{{text-align:right;white-space:nowrap;padding-right:24px;font-variant-numeric:tabular-nums}}
td.fill{{width:60%;min-width:200px;padding-right:0}}
.track{{position:relative;height:16px;margin:2px 0;border-radius:4px;background:var(--card);overflow:hidden;
box-shadow:inset 0 0 0 1px var(--line)}}
.track i{{position:absolute;top:0;bottom:0;min-width:2px;border-radius:2px}}
.keys{{display:flex;flex-wrap:wrap;gap:6px 20px;margin:12px 0 0;padding:0;list-style:none;color:var(--muted);
font-size:13px}}
.keys i{{display:inline-block;width:12px;height:12px;margin-right:6px;border-radius:3px;vertical-align:-1px}}
.scale i{{margin:0;border-radius:0}}
.matrices{{display:flex;flex-wrap:wrap;gap:28px 40px;margin-top:20px}}
.heat{{overflow-x:auto;max-width:100%}}
.heat table{{width:auto;border-collapse:separate;border-spacing:2px}}
.heat caption{{font-weight:400;color:var(--muted)}}
.heat th,.heat td{{min-width:52px;padding:6px 10px;border:0;border-radius:4px;text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}}
.heat tbody th{{font:600 12px/1.4 {SANS_FONTS}}}
{"".join(f".heat td.h{n}{{background:{fill};color:{ink}}}" for n, (fill, ink) in enumerate(HEAT))}
@media screen and (max-width:719.9px){{
.tables td.number{{text-align:left;padding-right:0}}.tables td.fill{{width:auto;padding-left:0;text-indent:0}}
.tables td.fill::before{{content:none}}
.heat thead{{display:table-header-group}}.heat tr{{display:table-row}}.heat td,.heat td[data-of]{{display:table-cell;
text-indent:0;padding:6px 8px}}.heat td::before{{content:none}}
dl{{grid-template-columns:minmax(0,1fr);gap:0}}dd{{margin-bottom:8px}}
}}
@media print{{
body{{padding:0;max-width:none}}tr{{break-inside:avoid}}h2{{break-after:avoid}}
.track i,.keys i,.heat td{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
}}
"""


def style_sheet() -> str:
    """The style sheet of a page, apart from that of a drawing in it."""
    light = ":root{" + "".join(_variables(LIGHT, 0)) + "}"
    dark = ":root{" + "".join(_variables(DARK, 1)) + "}"
    colours = f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"
    return f"{colours}{FIGURE_STYLE}{TABLE_STYLE}{_SHAPES}"


def _variables(scheme: Scheme, index: int) -> Iterator[str]:
    for name in ("paper", "card", "line", "ink", "muted"):
        yield f"--{name}:{getattr(scheme, name)};"
    for name, tones in (("good", _GOOD), ("bad", _BAD), ("warn", _WARN)):
        yield f"--{name}:{tones[index]};"
    for n, hue in enumerate(scheme.hues):
        yield f"--hue{n}:{hue.fill};--edge{n}:{hue.edge};"
