"""A process that maps lent chunks, and executes the requests of a test: one line of JSON each."""

from __future__ import annotations

import json
import sys
from typing import Any

import memtopo
from memtopo.common.errors import MemtopoError
from tests.helpers.processes import print_json


def main(layout: str, machine: str, name: str = "kv") -> None:
    """Attach, answer each line of the standard input, and leave at its end."""
    with memtopo.attach(layout, machine=machine) as shared:
        kv = shared.range(name)
        print_json({"attached": True})
        while line := sys.stdin.readline():
            method, *given = json.loads(line)
            try:
                print_json({"answer": call(kv, method, *given)})
            except MemtopoError as error:
                print_json({"error": str(error), "code": getattr(error, "code", None)})


def call(kv: Any, method: str, *given: Any) -> Any:
    if method == "seal":
        *part, key = given
        return kv.seal(*part, key=key)
    if method == "write":
        *part, byte = given
        view = kv.view(*part)
        view.memory[:] = bytes([byte]) * view.size
        return None
    return getattr(kv, method)(*given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
