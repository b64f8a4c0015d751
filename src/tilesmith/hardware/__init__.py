"""Known GPUs as data, and how much of one a kernel can fill."""
