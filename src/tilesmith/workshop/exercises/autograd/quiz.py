"""Answers, from the trace of the forward kernel."""


def bytes_kept(facts):
    return facts.argument("x_ptr").unique_loaded_bytes


def bytes_of_forward(facts):
    return facts.kernel.bytes


def bytes_of_both(facts):
    return bytes_of_forward(facts)


def bytes_of_backward(facts):
    """The gradient has as many bytes as the result, and the gradient of x as many as x."""
    return 2 * bytes_kept(facts) + facts.argument("out_ptr").stored_bytes
