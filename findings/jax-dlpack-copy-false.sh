#!/bin/sh
# jax 0.10.2: jax.dlpack.from_dlpack(x, copy=False) copies a 64-bit array, and cuts its values.
#
# Expected: with copy=False, an input that cannot be shared raises an error, as one whose address is not a multiple of
# 64 does (ValueError). Observed: an int64 array becomes an int32 array in other memory, without an error or a warning,
# though both were asked to be errors: 2**40 + 7 becomes 7. What is written to the input afterwards is not seen.
# It happens as long as jax_enable_x64 is off, its default. The reference of from_dlpack does not mention it.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" -W error - <<'PY'
import jax
import numpy as np

memory = np.zeros(512, np.uint8)
start = -memory.ctypes.data % 64

aligned = memory[start : start + 64].view(np.float32)
shared = jax.dlpack.from_dlpack(aligned, copy=False)
assert shared.unsafe_buffer_pointer() == aligned.ctypes.data

unaligned = memory[start + 16 : start + 80].view(np.float32)
try:
    jax.dlpack.from_dlpack(unaligned, copy=False)
except ValueError as error:
    print("float32, unaligned, copy=False:", str(error).split(".")[0])
else:
    raise SystemExit("an unaligned array is accepted now")

wide = memory[start : start + 64].view(np.int64)
wide[0] = 2**40 + 7
found = jax.dlpack.from_dlpack(wide, copy=False)
print("int64, aligned, copy=False:", found.dtype, int(wide[0]), "->", int(found[0]))
assert found.unsafe_buffer_pointer() != wide.ctypes.data, "it is shared now"
assert (str(found.dtype), int(found[0])) == ("int32", 7), "it has another type or value now"
PY
