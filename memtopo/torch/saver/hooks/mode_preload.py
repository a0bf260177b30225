"""Start of processes that use the saver."""

from memtopo.torch.saver import configure_subprocess

__all__ = ["configure_subprocess"]
