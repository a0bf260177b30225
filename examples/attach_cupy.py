"""The KV cache held by 'memtopo apply --hold specs/hold.yaml', as an array of CuPy, without a copy."""

import cupy

import memtopo

with memtopo.attach("kv-store") as shared:
    pages = cupy.from_dlpack(shared.export("pages", dtype="float16", shape=(32, -1)))
    shared.event("stored").wait(cupy.cuda.get_current_stream())  # later work waits for the event
    pages[0] = 1
    print(pages.shape, pages.device, float(pages[0].sum(dtype="float32")))
    del pages  # the view must end before the lease does
