"""Import a chunk of a held layout into Vulkan, read it, and write it.

    memtopo apply specs/vulkan-consumer.yaml --hold &
    python examples/vulkan/consumer.py vulkan-consumer/picture

Prints the first word of the chunk, fills the chunk with another word, and reads it back.
"""

from __future__ import annotations

import argparse
import os
import sys

from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.vulkan import Gpu

WORD = 0x0B5E55ED


def main() -> int:
    """Import one chunk of a layout that another process holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", help="LAYOUT/EXPORT, or /path/to/socket/EXPORT")
    parser.add_argument("--validate", action="store_true", help="enable Vulkan's validation layer")
    asked = parser.parse_args()
    holder, _, name = asked.export.rpartition("/")
    with connect(endpoint(socket=holder) if "/" in holder else endpoint(holder)) as client:
        offer = client.offers()[name]
        (handle,) = client.handles(name)
        if handle.fd is None or offer.gpu is None:
            sys.exit(f"{asked.export} is not a chunk of a GPU, exported as a descriptor")
        with Gpu(bytes.fromhex(offer.gpu), validation=asked.validate) as gpu:
            # Vulkan takes ownership of the descriptor that it imports: give it a duplicate, and close this one.
            copy = os.dup(handle.fd)
            handle.close()
            chunk = gpu.adopt(copy, offer.size)
            found = chunk.read(0, 4)
            chunk.fill(WORD)
            same = chunk.read() == WORD.to_bytes(4, "little") * (offer.size // 4)
            chunk.free()
        for message in gpu.messages:
            print(f"validation: {message}", file=sys.stderr)
    print(f"found {int.from_bytes(found, 'little'):#010x}, wrote {WORD:#010x}")
    return 0 if same and not gpu.messages else 1


if __name__ == "__main__":
    sys.exit(main())
