"""Kernels to look at: each is a file that `tilesmith check` takes."""
