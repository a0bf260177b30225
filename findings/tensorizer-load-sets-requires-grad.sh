#!/bin/sh
# tensorizer 2.12.1 with PyTorch 2.13.0: load_into_module turns floating-point buffers, and frozen parameters, into ones
# that require a gradient.
#
# Expected: a module that is saved by write_module and loaded into an equal one is as before; write_module is documented
# to write the type of parameters, and a buffer never requires a gradient.
# Observed: requires_grad is true for every tensor of a floating-point dtype. `running_mean` of a BatchNorm1d is a
# Parameter in the module's buffers, so the next forward pass in training mode raises RuntimeError, and a parameter that
# was frozen both in the saved module and in the one that it is loaded into trains again. Integer buffers stay as they are.
#
# Fails if this changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check tensorizer==2.12.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import torch
from tensorizer import TensorDeserializer, TensorSerializer


def module():
    made = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    made[0].requires_grad_(False)
    return made


saved, loaded = module(), module()
serializer = TensorSerializer("m.tensors")
serializer.write_module(saved)
serializer.close()
before = {name: each.requires_grad for name, each in (*saved.named_parameters(), *saved.named_buffers())}
TensorDeserializer("m.tensors", device="cpu").load_into_module(loaded)
after = {name: each.requires_grad for name, each in (*loaded.named_parameters(), *loaded.named_buffers())}
changed = [name for name in before if before[name] != after[name]]
print("requires a gradient only after the load:", changed)
assert changed == ["0.weight", "0.bias", "1.running_mean", "1.running_var"]
print("type of the buffer running_mean:", type(loaded[1].running_mean).__name__)
assert isinstance(loaded[1].running_mean, torch.nn.Parameter)
saved.train()(torch.rand(4, 3))
print("a forward pass of the saved module: done")
try:
    loaded.train()(torch.rand(4, 3))
except RuntimeError as error:
    print("a forward pass of the loaded one:", str(error).splitlines()[0])
    assert "running_mean" in str(error)
else:
    raise SystemExit("a forward pass of the loaded module succeeds")
PY
