#!/bin/sh
# warp-lang 1.19.0: wp.from_dlpack(x) raises an IndexError of Python for an array without dimensions.
#
# Expected: an array of one element, as wp.from_numpy makes of the same input, or an error that names the shape, as an
# array of five dimensions gets. DLPack exports arrays without dimensions (a scale, a loss), and NumPy and PyTorch
# import them. Observed: "list assignment index out of range", from the list of strides. The same element with shape
# (1,) is shared without a copy. The reference of from_dlpack names no limit.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check warp-lang==1.19.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import warp as wp

wp.config.quiet = True
scalar = np.array(3.5, np.float32)
assert np.from_dlpack(scalar).shape == ()

print("from_numpy, shape ():", wp.from_numpy(scalar, device="cpu").shape)
shared = wp.from_dlpack(scalar.reshape(1))
assert (shared.shape, shared.ptr) == ((1,), scalar.ctypes.data)
try:
    wp.from_dlpack(np.zeros((1,) * 5, np.float32))
except RuntimeError as error:
    print("from_dlpack, 5 dimensions:", error)
try:
    found = wp.from_dlpack(scalar)
except IndexError as error:
    print("from_dlpack, shape (): IndexError:", error)
else:
    raise SystemExit(f"it is accepted now, with shape {found.shape}")
PY
