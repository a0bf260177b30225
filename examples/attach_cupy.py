"""A KV cache that 'memtopo apply --hold specs/hold.yaml' holds, as an array of CuPy. Nothing is copied."""

import cupy

import memtopo

with memtopo.attach("kv-store") as shared:
    pages = cupy.from_dlpack(shared.export("pages", dtype="float16", shape=(32, -1)))
    shared.event("stored").wait(cupy.cuda.get_current_stream())  # later work comes after what was stored
    pages[0] = 1
    print(pages.shape, pages.device, float(pages[0].sum(dtype="float32")))
    del pages  # its memory goes with the lease
