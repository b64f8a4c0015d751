"""Errors of the Python around a kernel: autograd functions, modules, and waiting for a keyboard."""

from tilesmith.lab.errors.explanation import Explanation as E

AUTOGRAD_ERRORS = (
    E("backward-arguments", r"\b(backward|forward)\(\) (takes|missing)",
      "Autograd calls forward(ctx, inputs…) and backward(ctx, gradients…), with one gradient for each output.",
      "Write both as @staticmethod, with ctx as the first argument: def backward(ctx, gradient)."),
    E("number-of-gradients", r"returned an incorrect number of gradients",
      "backward returns one gradient for each argument of forward, in the same order.",
      "Return None for an argument that has no gradient, such as eps: return gradient_of_x, None."),
    E("forward-without-apply", r"'NoneType' object has no attribute '(save_for_backward|saved_tensors|\w+_grads?)'",
      "forward was called without a ctx, so autograd does not know of this call.",
      "Call the function by apply, which makes the ctx: MyFunction.apply(x)."),
    E("function-without-apply", r"'\w*Function\w*' object has no attribute|Legacy autograd function",
      "A torch.autograd.Function is called by its method apply, which records it for the backward.",
      "Write MyFunction.apply(x), not MyFunction(x)."),
    E("nothing-saved", r"values to unpack",
      "ctx.saved_tensors holds exactly the tensors that forward saved, in the same order.",
      "Call ctx.save_for_backward(x, …) in forward, and unpack as many names in backward.",
      code=r"saved_tensors"),
    E("saves-no-tensor", r"save_for_backward can only save variables",
      "save_for_backward keeps tensors only.",
      "Keep numbers as attributes: ctx.eps = eps."),
    E("module-without-super", r"before Module\.__init__\(\) call",
      "A module must be initialised before it can hold parameters.",
      "Call super().__init__() on the first line of __init__."),
    E("no-keyboard", r"EOF when reading a line|\bBdbQuit\b",
      "The file runs without a keyboard: input() and breakpoint() get no answer.",
      "Remove the call. To see a value, print it: print(x)."),
)  # fmt: skip
