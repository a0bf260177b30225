#!/bin/sh
# torch 2.13.0: torch.from_dlpack makes a writable tensor of a read-only array, and so changes a `bytes` object.
#
# torch.from_dlpack asks for version 1.0 of DLPack, the first one with a read-only flag. NumPy therefore exports a
# read-only array, with the flag. Expected: an error, or a warning, as torch.from_numpy gives for the same array.
# Observed: neither; a store through the tensor changes memory that Python guarantees to be immutable, here that of a
# `bytes` object. Code that takes the request for version 1.0 as a promise to keep the flag is wrong.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import torch


class Asked:
    """Array whose export is observed."""

    def __init__(self, array):
        self.array, self.versions = array, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, max_version=None, **more):
        self.versions.append(max_version)
        return self.array.__dlpack__(max_version=max_version, **more)


text = bytes(range(65, 73))
array = np.frombuffer(text, np.uint8)
assert not array.flags.writeable

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    torch.from_numpy(array)
assert len(warned) == 1, "torch.from_numpy does not warn any more"
print("from_numpy:", str(warned[0].message).split(".")[0])

asked = Asked(array)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    tensor = torch.from_dlpack(asked)
print("from_dlpack: asked for DLPack", asked.versions, "and warned of nothing")
assert asked.versions == [(1, 0)], "it asks for another version now"
tensor.fill_(90)
print("bytes(range(65, 73)) is now", text)
assert text == b"ZZZZZZZZ", "the bytes are not changed any more"
PY
