#!/bin/sh
# safetensors 0.8.0: get_slice(name)[:] raises for a tensor without rows, which get_tensor and load_file return.
#
# Expected: [:] of a tensor is the tensor, as for NumPy and PyTorch, and an empty slice is empty wherever it begins.
# Observed: for shape (0, 3), [:], [...] and [0:0] raise "index 0 out of bounds for tensor dimension #0 of size 0". Of 4
# rows, [2:2] and [0:0] are empty, and [4:4] raises. Loaders that read each parameter by get_slice(name)[...] fail at such
# a tensor, and so does the last rank of a split in which it has no rows: a split of 4 rows in shares of 2 for 3 ranks.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

rows, none = np.arange(12, dtype=np.int32).reshape(4, 3), np.zeros((0, 3), np.int32)
save_file({"rows": rows, "none": none}, "t.safetensors")
with safe_open("t.safetensors", "np") as file:
    assert file.get_tensor("none").shape == (0, 3)
    print("get_tensor of shape (0, 3): read")

    def answer(name, index):
        try:
            return file.get_slice(name)[index].shape
        except SafetensorError as error:
            return str(error).split(": ")[-1]

    for index in (slice(None), Ellipsis, slice(0, 0)):
        found = answer("none", index)
        print(f"get_slice of shape (0, 3), {index}: {found}")
        assert found == "index 0 out of bounds for tensor dimension #0 of size 0"
    shares = [answer("rows", slice(2 * rank, 2 * rank + 2 if rank < 2 else 4)) for rank in range(3)]
    print("4 rows in shares of 2 for 3 ranks:", shares)
    assert shares == [(2, 3), (2, 3), "index 4 out of bounds for tensor dimension #0 of size 4"]
    assert answer("rows", slice(2, 2)) == (0, 3)
PY
