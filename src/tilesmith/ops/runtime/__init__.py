"""What all operators share: declaring, planning, dispatch and tuning. Nothing here serves a single operator.

Files, in reading order:

- `operator.py`: `@operator`, what users call: checks, the choice of who computes, the gradient.
- `options.py`: what an operator may declare beyond its kernels and its gradient.
- `kernels.py`: `@kernels`, kernels as a torch operator, planned once for each look of a call.
- `flat_arguments.py`: a NamedTuple of weights as single arguments of a torch operator.
- `plan.py`: the plan of a call as data: buffers and launches.
- `forms.py`: several kernels for one computation, as an ordered list of forms.
- `config.py`: launch configurations and their neighbours in a search.
- `layout.py`: tensors of any strides as rows and columns.
- `kinds.py`: the kind of each argument, checked against the annotations.
- `arguments.py`: checks of arguments, with errors that name the argument.
- `dispatch.py`: `use`, `debug` and `configured`: who computes, process-wide or in a block.
- `autograd.py`: the gradient as PyTorch's autograd calls it.
- `precision.py`: tf32 or exact products of single precision; autocast.
- `tuning.py`: tables of measured configurations and winners, and the search that fills them.
- `tuned_case.py`: tuning one case of one operator.
- `auto/`: who computes a call under `use("auto")`, and the models behind it.
- `composing/`: helpers for operators built from other operators.
"""
