"""Arithmetic of a drawing: lengths to scale that can still be seen, and labels that keep clear of one another."""

from __future__ import annotations

from collections.abc import Sequence


def lengths(sizes: Sequence[int], room: float, least: float) -> list[float]:
    """Pixels for sizes that lie one behind another: to scale, but none under `least`, while that leaves half to scale.

    Their sum is `room`.
    """
    total = sum(sizes) or 1
    if len(sizes) * least * 2 > room:
        return [size * room / total for size in sizes]
    small: set[int] = set()
    while True:
        rest = sum(size for index, size in enumerate(sizes) if index not in small) or 1
        scale = (room - least * len(small)) / rest
        under = {index for index, size in enumerate(sizes) if index not in small and size * scale < least}
        if not under:
            return [least if index in small else size * scale for index, size in enumerate(sizes)]
        small |= under


def clear(wished: Sequence[float], heights: Sequence[float], end: float) -> list[float]:
    """Where labels of these heights begin, near where they wish to, in their order and apart; all of them before `end`.

    `wished` ascends, and `heights` have room before `end`.
    """
    tops: list[float] = []
    floor = 0.0
    for wish, height in zip(wished, heights, strict=True):
        tops.append(max(wish, floor))
        floor = tops[-1] + height
    for index in range(len(tops) - 1, -1, -1):
        tops[index] = min(tops[index], end - heights[index])
        end = tops[index]
    return tops
