"""The lab: is a kernel right, why is it slow, how far is it from the limit? It serves everyone's kernels alike."""

from tilesmith.lab.check import Result, check

__all__ = ["Result", "check"]
