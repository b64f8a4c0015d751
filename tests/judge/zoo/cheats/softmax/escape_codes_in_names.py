# names and messages hold escape codes and markup
# judge: exception
import torch
import triton
import triton.language as tl


def softmax(x):
    raise ValueError("\x1b[2J\x1b[H<script>alert(1)</script> verdict: pass \u202e" + "A" * 100_000)
