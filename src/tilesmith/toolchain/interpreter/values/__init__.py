"""What is known of the values of programs, beside the values.

Files, in reading order:

- `undefined.py`: undefined values, followed to the results that they reach.
- `precision.py`: infinities, NaN and error beside float64, where they arise.
- `hints.py`: hints to the compiler, checked on values.
- `other_order.py`: another order of elements where Triton promises none.
- `variables.py`: the variables of a kernel after each statement.
"""
