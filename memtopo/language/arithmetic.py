"""Arithmetic of parameters: `$layers * $page` on whole numbers and sizes.

It is total: texts, nesting and numbers are bounded, a division is exact, and every other case is an `InvalidValue`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from memtopo.common.units import LARGEST, UNITS, NotASize, exact, parse_count, parse_size, shorten
from memtopo.diagnostics.model import InvalidValue

LONGEST = 1000
"""Characters of one arithmetic."""

DEEPEST_NESTING = 32
"""Levels of parentheses in one arithmetic."""

PARAMETER_NAME = "[A-Za-z][A-Za-z0-9_]{0,127}"
USE = rf"\$({PARAMETER_NAME})"
"""Use of a parameter; group 1 is its name."""

_ENCLOSED = rf"\$(?:\{{ *({PARAMETER_NAME}) *\}}|\( *({PARAMETER_NAME}) *\))"
"""Use of a parameter as shells and Makefiles write it."""

_TOKEN = re.compile(
    rf"\s*(?:(?P<use>\${PARAMETER_NAME})|(?P<literal>[0-9]+(?: ?[A-Za-z]+)?)|(?P<sign>[-+*/()])|(?P<end>\Z))"
)


class Quantity(Struct, frozen=True):
    """Number, or number of bytes. A 0 is both."""

    amount: int
    in_bytes: bool = False

    def __str__(self) -> str:
        return exact(self.amount) if self.in_bytes else str(self.amount)


def evaluate(text: str, value_of: Callable[[str], str]) -> Quantity:
    """Return the value of an arithmetic; `value_of` returns the text of a parameter, and may raise `InvalidValue`.

    Raises `InvalidValue`: MT902 for what is no arithmetic, MT903 for one without a value.
    """
    if len(text) > LONGEST:
        raise InvalidValue("MT902", f"an arithmetic of {len(text):,} characters; at most {LONGEST:,} are allowed")
    found = _Evaluation(text, value_of).result()
    if found.amount < 0:
        raise InvalidValue("MT903", f"{shorten(text)!r} is less than 0")
    return found


def quantity(text: str) -> Quantity:
    """Read a number or a size in bytes. Raises `InvalidValue`."""
    if text.isdecimal():
        try:
            return Quantity(parse_count(text))
        except ValueError as error:
            raise InvalidValue("MT902", str(error)) from error
    try:
        size = parse_size(text)
    except NotASize as error:
        help = f"write {error.meant}" if error.meant else None
        raise InvalidValue("MT902", f"{shorten(text)!r} is neither a number nor a size", help=help) from error
    if size.in_granules:
        message = f"{shorten(text)!r} has a value only on a machine, and an expression cannot contain it"
        raise InvalidValue("MT902", message, help=f"use sizes in bytes: {', '.join(UNITS)}")
    return Quantity(size.amount, in_bytes=True)


class _Evaluation:
    """Evaluation of one text, from left to right: `*` and `/` before `+` and `-`."""

    def __init__(self, text: str, value_of: Callable[[str], str]) -> None:
        self._text, self._value_of = text, value_of
        self._words = _tokens(text)
        self._kind, self._word = next(self._words)

    def result(self) -> Quantity:
        """Value of the whole text."""
        found = self._sum(0)
        if self._kind != "end":
            raise self._unexpected("an operator")
        return found

    def _sum(self, depth: int) -> Quantity:
        found = self._product(depth)
        while self._word in ("+", "-"):
            found = _sum(found, self._take(), self._product(depth))
        return found

    def _product(self, depth: int) -> Quantity:
        found = self._operand(depth)
        while self._word in ("*", "/"):
            combined = _product if self._take() == "*" else _quotient
            found = combined(found, self._operand(depth))
        return found

    def _operand(self, depth: int) -> Quantity:
        if self._kind == "use":
            name = self._take()[1:]
            text = self._value_of(name)
            try:
                return quantity(text)
            except InvalidValue as wrong:
                message = f"${name} is {shorten(text)!r}, which is neither a number nor a size in bytes"
                help = wrong.help and f"{wrong.help} for ${name}"
                raise InvalidValue("MT903", message, help=help) from wrong
        if self._kind == "literal":
            return quantity(self._take())
        if self._word != "(":
            raise self._unexpected("a number, a size, a $name or '('")
        if depth == DEEPEST_NESTING:
            raise InvalidValue("MT902", f"parentheses are nested deeper than {DEEPEST_NESTING} levels")
        self._take()
        found = self._sum(depth + 1)
        if self._word != ")":
            raise self._unexpected("an operator or ')'")
        self._take()
        return found

    def _take(self) -> str:
        token = self._word
        self._kind, self._word = next(self._words)
        return token

    def _unexpected(self, expected: str) -> InvalidValue:
        found = repr(self._word) if self._word else "the end"
        return InvalidValue("MT902", f"{shorten(self._text)!r}: expected {expected}, found {found}")


def plainly_used(text: str) -> str:
    """Return a text with `$name` for each `${name}` and `$(name)`."""
    return re.sub(_ENCLOSED, lambda use: f"${use[1] or use[2]}", text)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token, the end included."""
    index = 0
    while True:
        match = _TOKEN.match(text, index)
        if not match or not match.lastgroup:
            raise _no_token(text, index)
        yield match.lastgroup, match[match.lastgroup]
        index = match.end()


def _no_token(text: str, index: int) -> InvalidValue:
    rest = text[index:].lstrip()
    help = "there are + - * / and parentheses"
    if (meant := plainly_used(text)) != text:
        message = f"{shorten(text)!r}: a parameter has no braces or parentheses around its name"
        return InvalidValue("MT902", message, help=f"write {shorten(meant)}", meant=meant)
    if rest.startswith("$"):
        help = "a parameter is written as $name, and its multiples as $name * 1MiB"
    elif (unit := re.match("[A-Za-z]+", rest)) and unit[0] in UNITS:
        help = f"write a product: {shorten(text[:index].strip())} * 1{unit[0]}"
    return InvalidValue("MT902", f"{shorten(text)!r}: {shorten(rest, 12)!r} is not part of an arithmetic", help=help)


def _sum(left: Quantity, sign: str, right: Quantity) -> Quantity:
    if left.in_bytes != right.in_bytes and left.amount and right.amount:
        raise _mixed(f"{left} {sign} {right}", "a size and a number have no sum and no difference")
    amount = left.amount + right.amount if sign == "+" else left.amount - right.amount
    return _bounded(Quantity(amount, left.in_bytes or right.in_bytes), f"{left} {sign} {right}")


def _product(left: Quantity, right: Quantity) -> Quantity:
    if left.in_bytes and right.in_bytes:
        raise _mixed(f"{left} * {right}", "the product of two sizes is not a size")
    return _bounded(Quantity(left.amount * right.amount, left.in_bytes or right.in_bytes), f"{left} * {right}")


def _quotient(left: Quantity, right: Quantity) -> Quantity:
    """Exact quotient: of two sizes a number, of a size and a number a size."""
    shown = f"{left} / {right}"
    if right.amount == 0:
        raise InvalidValue("MT903", f"{shown} is a division by 0")
    if right.in_bytes and not left.in_bytes:
        raise _mixed(shown, "a number cannot be divided by a size")
    rest = abs(left.amount) % abs(right.amount)
    if rest:
        below = Quantity(abs(left.amount) - rest, left.in_bytes)
        help = f"{below} and {Quantity(below.amount + abs(right.amount), left.in_bytes)} are multiples of {right}"
        remainder = Quantity(rest, left.in_bytes)
        raise InvalidValue("MT903", f"{shown} leaves a remainder of {remainder}", help=help)
    return Quantity(left.amount // right.amount, left.in_bytes and not right.in_bytes)


def _mixed(shown: str, reason: str) -> InvalidValue:
    return InvalidValue("MT903", f"{shown}: {reason}")


def _bounded(found: Quantity, shown: str) -> Quantity:
    if abs(found.amount) > LARGEST:
        raise InvalidValue("MT903", f"{shown} is more than 64 bits can count")
    return found
