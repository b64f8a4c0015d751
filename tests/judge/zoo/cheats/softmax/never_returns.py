# never returns
# judge: timeout
import torch
import triton
import triton.language as tl


def softmax(x):
    while True:
        pass
