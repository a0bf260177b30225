#!/bin/sh
# fastsafetensors 0.5.0: one complex tensor makes all tensors of a .safetensors file unreadable.
#
# Expected: safetensors 0.8.0 writes and reads the types C64, F8_E4M3FNUZ and F8_E5M2FNUZ, so a reader of this format
# either has them, or refuses the tensor that has one. Observed: fastsafe_open raises ValueError ("'C64' is not a valid
# DType") when it opens the file, without the name of the tensor or of the file, although only a float32 tensor is asked
# for. A checkpoint with one table of rotary frequencies (complex64), or with weights for AMD GPUs (FNUZ), cannot be
# loaded at all. The README lists no types.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check fastsafetensors==0.5.0 safetensors==0.8.0 \
    torch==2.14.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import torch
from fastsafetensors import fastsafe_open
from safetensors.torch import load_file, save_file

weight = torch.arange(6.0).reshape(2, 3)


def read(file):
    with fastsafe_open(file, nogds=True, device="cpu") as opened:
        return opened.get_tensor("weight").clone()


save_file({"weight": weight}, "plain.safetensors")
assert torch.equal(read("plain.safetensors"), weight)
print("float32 alone: read")

for dtype in (torch.complex64, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
    save_file({"weight": weight, "other": torch.ones(2).to(dtype)}, "mixed.safetensors")
    found = load_file("mixed.safetensors")
    assert found["other"].dtype == dtype and torch.equal(found["weight"], weight)
    try:
        read("mixed.safetensors")
    except ValueError as error:
        print(f"{dtype} beside it: safetensors reads both; fastsafetensors: ValueError: {error}")
        assert str(error).endswith("is not a valid DType")
    else:
        raise SystemExit("changed: it is read")
PY
