from __future__ import annotations

from itertools import combinations

import pytest

from memtopo.output.diagram.notation import DARK, LIGHT, TEXTURES, Scheme


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_edges_have_enough_contrast(scheme: Scheme) -> None:
    grounds = (scheme.paper, scheme.card, scheme.hole)
    assert min(contrast(ink, ground) for ink in (scheme.ink, scheme.muted) for ground in grounds) >= 4.5
    assert contrast(scheme.card, scheme.muted) >= 4.5
    assert min(contrast(scheme.edge, ground) for ground in grounds) >= 3
    assert min(contrast(hue.edge, hue.fill) for hue in scheme.hues) >= 3
    assert min(contrast(scheme.ink, hue.fill) for hue in scheme.hues) >= 3


def test_each_device_has_its_own_texture_and_colour() -> None:
    assert len(TEXTURES) == len(set(TEXTURES)) == len(LIGHT.hues) == len(DARK.hues)
    for scheme in (LIGHT, DARK):
        assert all(one.fill != other.fill for one, other in combinations(scheme.hues, 2))
