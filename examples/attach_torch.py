"""The KV cache held by 'memtopo apply --hold specs/hold.yaml', as a tensor of PyTorch, without a copy."""

import torch

import memtopo

with memtopo.attach("kv-store") as shared:
    pages = torch.from_dlpack(shared.export("pages", dtype="float16", shape=(32, -1)))
    shared.event("stored").wait(torch.cuda.current_stream())  # later work waits for the event
    pages[0] = 1
    print(pages.shape, pages.device, pages[0].sum(dtype=torch.float32).item())
    del pages  # the view must end before the lease does
