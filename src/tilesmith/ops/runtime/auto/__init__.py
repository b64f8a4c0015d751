"""`auto`: who computes a call, our kernels or PyTorch, forward and backward apart.

Files, in reading order:

- `sides.py`: the choice: a measurement of this very call, else the model, else the nearest measured sizes.
- `features.py`: a call as the few numbers that decide who is faster.
- `model.py`: from these numbers to the quotient of both times, by fitted coefficients.
- `fitting.py`: fits the coefficients to stored surveys, and chooses the kind of model by the error on left-out cases.
- `first_sight.py`: measures both sides once, where `use("auto", measure=True)` asks for it.
"""
