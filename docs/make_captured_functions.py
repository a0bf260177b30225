"""Writes memtopo/native/capture/functions.h: functions that captures record, from the table of C functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from memtopo.driver.functions import FUNCTIONS, MEMBERS, MEMORY_FUNCTIONS, SECRETS, Parameter, declared, plain_name
from memtopo.driver.protocol import call_name
from memtopo.testing.abi import exported

HEADER = Path(__file__).parent.parent / "memtopo" / "native" / "capture" / "functions.h"

HEAD = """\
#pragma once
/* Functions that are recorded, from memtopo/driver/functions.py; `make docs` writes this file. */

#include "types.h"

static const function_t functions[] = {
"""

TYPES: Mapping[str, str] = {
    "u32": "UNSIGNED",
    "i32": "SIGNED",
    "ordinal": "PLACE",
    "shared": "SHARED",
    "attribute": "VALUE",
    "CUmemAllocationHandleType": "SIGNED",
    "CUmemRangeHandleType": "SIGNED",
    "CUmemPool_attribute": "SIGNED",
    "CUmem_advise": "SIGNED",
    "CUmemAttach_flags": "UNSIGNED",
    "CUevent_flags": "UNSIGNED",
    "CU_MEMHOSTALLOC": "UNSIGNED",
    "CU_MEMHOSTREGISTER": "UNSIGNED",
    "CUmemLocation": "LOCATION",
    "CUmemLocation*": "AT_LOCATION",
    "CUmemAccessDesc*": "GRANTS",
    "CUmemAllocationProp*": "PROPERTIES",
    "CUmemPoolProps*": "POOL",
    "CUipcMemHandle": "SECRET",
    "CUipcEventHandle": "SECRET",
    "CUmemPoolPtrExportData*": "AT_SECRET",
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC*": "MEMORY",
    "CUDA_EXTERNAL_MEMORY_BUFFER_DESC*": "PART",
    "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC*": "SEMAPHORE",
    "CUmulticastObjectProp*": "MULTICAST",
}
"""Types of `types.h`; parameters of other types are numbers of 64 bits."""

RESULTS: Mapping[str, str] = {
    "u32": "MADE_INT",
    "shared": "MADE_SHARED",
    "attribute": "MADE_VALUE",
    **dict.fromkeys(SECRETS, "MADE_SECRET"),
}
"""Types of results; others are numbers of 64 bits."""

OTHERWISE: Mapping[str, str] = {
    "cuMemImportFromShareableHandle": '{IMPORTED, "location"}',
    "cuMemGetHandleForAddressRange": "{MADE_INT, NULL}",
}
"""Results that are recorded in another way than others of their type."""


def main() -> None:
    """Write the header."""
    HEADER.write_text(header(), encoding="utf-8")


def header() -> str:
    """Text of the header."""
    lines = [line for names in MEMORY_FUNCTIONS for name in names.split() for line in _lines(name)]
    return HEAD + "".join(lines) + "};\n\nenum { FUNCTIONS = sizeof functions / sizeof *functions };\n"


def _lines(name: str) -> Iterator[str]:
    """Line of a function, and of its versions without a line of their own."""
    own = [each for each in exported() if plain_name(each) == name and each not in FUNCTIONS]
    parameters = ", ".join(_parameters(name))
    for symbol in (name, *own):
        yield f'    {{"{symbol}", "{_method(name)}", {{{parameters}}}}},\n'


def _method(name: str) -> str:
    method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain_name(name).removeprefix("cu")).lower()
    assert call_name(method) == plain_name(name)
    return method


def _parameters(name: str) -> Iterator[str]:
    results = 0
    for each in declared(name).parameters:
        if each.is_result:
            yield _result(name, each, results)
            results += 1
            continue
        name_of = f'"{each.name}"' if each.name or each.type in MEMBERS else "NULL"
        yield f"{{{TYPES.get(each.type, 'NUMBER')}, {'NULL' if each.constant else name_of}}}"
        if each.words > 1:
            yield "{NUMBER, NULL}"


def _result(name: str, result: Parameter, index: int) -> str:
    if index:
        return f'{{MADE_TOO, "{result.name}"}}'
    return OTHERWISE.get(name, f"{{{RESULTS.get(result.type, 'MADE')}, NULL}}")


if __name__ == "__main__":
    main()
