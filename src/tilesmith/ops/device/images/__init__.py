"""Images and the windows that slide over them: what pooling and convolution share.

Files, in reading order:

- `windows.py`: a window's numbers, checks of arguments, memory formats.
- `tiles.py`: how programs share out the elements of images, and device functions around an element's windows.
- `pooling.py`: arguments, shapes, divisors and cost of both pooling operators.
- `pooling_forward.py`: the forward kernel of both pooling operators, and its plan.
- `pooling_backward.py`: the backward kernel of both pooling operators, and its plan.
"""
