"""A KV cache that 'memtopo apply --hold specs/hold.yaml' holds, as a tensor of PyTorch. Nothing is copied."""

import torch

import memtopo

with memtopo.attach("kv-store") as shared:
    pages = torch.from_dlpack(shared.export("pages", dtype="float16", shape=(32, -1)))
    shared.event("stored").wait(torch.cuda.current_stream())  # later work comes after what was stored
    pages[0] = 1
    print(pages.shape, pages.device, pages[0].sum(dtype=torch.float32).item())
    del pages  # its memory goes with the lease
