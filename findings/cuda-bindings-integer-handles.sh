#!/bin/sh
# cuda-bindings 13.5.0: two CUstream of one value are equal; two CUdeviceptr or CUmemGenericAllocationHandle are not.
#
# The types that C declares as pointers (CUstream, CUevent, CUcontext, CUmemoryPool, ...) compare and hash by value. The
# types that C declares as integers, among them all of virtual memory management, compare by identity, to each other and
# to an int. Expected: one rule for all handles, since both kinds print, convert (`int(h)`) and are passed alike.
# Observed: a set of streams finds a stream that the driver returned again; a set of addresses or of handles of chunks
# (cuMemRetainAllocationHandle returns the same value) never does, without an error. And a handle of either kind is true
# where its value is 0, so `if address:` does not find the address that a failed call left at 0.
# Compare `int(h)`.
#
# Fails if this changes. Needs no GPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check cuda-bindings==13.5.0
"$folder/venv/bin/python" - <<'PY'
from cuda.bindings import driver

POINTERS = "CUstream", "CUevent", "CUcontext", "CUmemoryPool", "CUgraph", "CUexternalMemory"
INTEGERS = "CUdeviceptr", "CUmemGenericAllocationHandle", "CUdevice", "CUtexObject"

for name in POINTERS + INTEGERS:
    kind = getattr(driver, name)
    one, same, null = kind(7), kind(7), kind(0)
    assert int(one) == int(same) == 7
    found = {"==": one == same, "== 7": one == 7, "in a set": same in {one}, "0 is true": bool(null)}
    print(f"{name:29}", found)
    by_value = name in POINTERS
    assert found == {"==": by_value, "== 7": False, "in a set": by_value, "0 is true": True}, "this has changed"
PY
