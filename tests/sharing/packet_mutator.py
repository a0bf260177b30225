"""Packets that are almost right: the protocol's own, changed in their bytes, their values, or what they carry."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 253, 254, 1 << 31, 1 << 63, -(1 << 70), 0.5, 1e300, "", "page", "../kv", "\x00",
    "\ud800", "x" * 5000, [], {}, [[[[[[]]]]]], {"a": {"b": {}}}, [1] * 300,
)  # fmt: skip
TOKENS = (b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"NaN", b"1e999", b"\xff", b"\x00", b"null", b"-", b"\\u")
LARGEST = 70_000


class Mutator:
    """Makes packets out of a few right ones; the same seed makes the same packets."""

    def __init__(self, right: Sequence[dict[str, Any]], seed: int) -> None:
        self._right, self._random = right, random.Random(seed)

    def packet(self, right: dict[str, Any] | None = None) -> tuple[bytes, int]:
        """A packet's bytes, and how many descriptors go with it; made out of a certain right one, if one is given."""
        data = json.dumps(self._changed(right or self._random.choice(self._right))).encode()
        for _ in range(self._random.choice((0, 0, 0, 1, 1, 3))):
            data = self._spoilt(data)
        return data[:LARGEST], self._random.choice((0,) * 10 + (1, 3, 4, 4, 253))

    def _changed(self, right: dict[str, Any]) -> Any:
        message = json.loads(json.dumps(right))
        for _ in range(self._random.choice((0, 1, 1, 2))):
            holder, key = self._somewhere(message)
            match self._random.randrange(3):
                case 0:
                    del holder[key]
                case 1:
                    holder[key] = copy.deepcopy(self._random.choice(ODD))
                case _:
                    holder[key] = self._deep(holder[key])
            if not message:
                return message
        return message

    def _somewhere(self, message: Any) -> tuple[Any, Any]:
        while True:
            key = self._random.choice(list(message) if isinstance(message, dict) else range(len(message)))
            inner = message[key]
            if not (isinstance(inner, dict | list) and inner) or self._random.random() < 0.3:
                return message, key
            message = inner

    def _deep(self, value: Any) -> Any:
        for _ in range(self._random.choice((1, 4, 12, 300))):
            value = [value] if self._random.random() < 0.5 else {"x": value}
        return value

    def _spoilt(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data) + 1)
        match self._random.randrange(6):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + self._random.choice(TOKENS) + data[at:]
            case 2:
                return data[:at] + self._random.randbytes(self._random.randrange(1, 9)) + data[at + 4 :]
            case 3:
                return data[:at] + self._random.choice(TOKENS) * self._random.choice((2, 9, 70_000)) + data[at:]
            case 4:
                return data + data
            case _:
                return self._random.randbytes(at)
