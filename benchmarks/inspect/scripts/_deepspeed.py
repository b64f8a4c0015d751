"""Prepare DeepSpeed's kernels for inference for import without its `__init__`."""

from types import SimpleNamespace

from _bare import bare

inference = "deepspeed.ops.transformer.inference"
bare("deepspeed", "deepspeed.ops", "deepspeed.ops.transformer", inference, f"{inference}.triton")
bare("deepspeed.accelerator", get_accelerator=lambda: SimpleNamespace(on_accelerator=lambda tensor: True))
