"""A ring buffer as a NumPy array, on a simulated machine: an access past its end reaches its start."""

import numpy as np

import memtopo

with memtopo.applied("specs/ring-buffer.yaml", machine="h200x2") as layout:
    ring = np.from_dlpack(layout.range("ring", dtype="float32"))
    middle = len(ring) // 2
    ring[middle - 2 : middle + 2] = [1, 2, 3, 4]
    print(ring[:2], ring[-2:])  # [3. 4.] [1. 2.]
    del ring  # the view must end before the layout does
