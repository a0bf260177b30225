"""Tensors that were handed to others by DLPack, and which of them are still out."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable
from ctypes import c_char_p, c_int, c_void_p, py_object
from dataclasses import dataclass

from memtopo.api import tensors

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, c_void_p, c_void_p]
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = c_int, [py_object, c_char_p]

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_strdup = ctypes.CDLL(None).strdup
_strdup.restype, _strdup.argtypes = c_void_p, [c_char_p]
# A capsule keeps the address of its name alone, and may live longer than this module.
_NAMES = {name: _strdup(name) for name in (_PLAIN, _VERSIONED)}

_OURS = 2
"""References to a capsule that nobody else has: the loan's, and the one that counting takes."""

_FEW = 64


@dataclass(slots=True)
class Loan:
    """A tensor by its address, of the view called `name`; the capsule is kept until somebody takes the tensor out."""

    name: str
    block: int
    label: bytes
    capsule: object | None


class Loans:
    """All tensors of one layout.

    A capsule of ours has no destructor, since one written in Python loses the exception that may be pending; a tensor
    that nobody took out of its capsule is found when the loans are gone through. That is done now and then, so that
    their number stays in proportion to those that are out.
    """

    def __init__(self) -> None:
        self._out: list[Loan] = []
        self._look_at = _FEW
        self._lock = threading.Lock()

    def lend(self, name: str, block: int, *, versioned: bool) -> object:
        """A capsule with a tensor."""
        label = _VERSIONED if versioned else _PLAIN
        capsule = _new(block, _NAMES[label], None)
        with self._lock:
            self._out.append(Loan(name, block, label, capsule))
            if len(self._out) >= self._look_at:
                self._go_through()
                self._look_at = max(_FEW, 2 * len(self._out))
        return capsule

    def out(self) -> Iterable[str]:
        """The names of views of which somebody has a tensor."""
        with self._lock:
            self._go_through()
            return [loan.name for loan in self._out]

    def _go_through(self) -> None:
        self._out = [loan for loan in self._out if not _settled(loan)]


def _settled(loan: Loan) -> bool:
    """Whether nobody has a tensor any more, which is then freed."""
    if loan.capsule is not None:
        if not _valid(loan.capsule, loan.label):
            loan.capsule = None  # its new owner renamed it, and calls the deleter
        elif sys.getrefcount(loan.capsule) <= _OURS:
            loan.capsule = None
            tensors.free(loan.block)
            return True
        else:
            return False
    if tensors.given_back(loan.block):
        tensors.free(loan.block)
        return True
    return False
