"""What each kind of reason means, and what to do about it: for agents that ask, and for the guide."""

from __future__ import annotations

EXPLANATIONS: dict[str, str] = {
    "syntax-error": "The file is not Python. Nothing was run.",
    "unreadable": "A file or folder of a series is no candidate: too large, without a main file, or not readable.",
    "import-error": "Importing the file raises an error. A candidate has no network, no other files and no GPU then.",
    "no-function": "The file has no function with the task's name, and not exactly one public function either.",
    "cuda-sources": "The candidate builds CUDA sources. The judge builds those of torch.utils.cpp_extension where "
    "an NVIDIA GPU, nvcc and g++ are. Without these, and for NVRTC, the verdict stays open, never a pass.",
    "exception": "Calling the function raises an error, on the case that the reason names.",
    "timeout": "A call took longer than the task's limit. Look for loops that never end.",
    "ended": "The process ended during a call: os._exit, a crash, or the memory limit.",
    "garbage": "The process sent something that is no answer. Only a candidate that changes the judge's modules does.",
    "bad-output": "The function returns something other than a tensor, or a tuple, list or dict of tensors.",
    "not-a-tensor": "An output is a subclass of Tensor, which can compute later than the call. Return plain tensors.",
    "wrong-shape": "An output has another shape or dtype than the definition's.",
    "no-launch": "No kernel launch of this call leads to the outputs: they come from an earlier call or are constant.",
    "torch-computes": "An operator of PyTorch computes something that the outputs depend on, and the task's rules want "
    "kernels to compute. PyTorch may allocate, fill, copy, cast, concatenate and make views.",
    "foreign-kernel": "A launched kernel's text is not in the candidate's files: it comes from a library, or was made "
    "while the candidate ran.",
    "not-a-kernel": "A kernel contains Python that is not in Triton's language, such as an import or a private name.",
    "not-portable": "The judge cannot replay a launch: an argument or global name of a kernel is more than tensors, "
    "numbers, constants, dtypes and functions of Triton. The verdict stays open.",
    "launch-option": "A launch has an option that does more than choose among right programs: options of the "
    "assembler, another file or library in place of the kernel, or another target.",
    "outside-kernels": "The outputs were right for the inputs that the candidate saw, but the same launches give wrong "
    "outputs for other inputs of the same shapes. So something that depends on input values was computed outside the "
    "kernels: in NumPy, on the host, in the constructor, in an earlier call, or it was stored in the file.",
    "not-by-a-kernel": "PyTorch moved elements into the output that the definition computes. Let a kernel store them.",
    "decoy-kernel": "PyTorch may compute in this task, but every kernel only copies or fills, or the "
    "outputs do not depend on what kernels store: they contribute nothing.",
    "alias": "An output shares memory with an input. The caller may overwrite the input.",
    "constants": "The candidate keeps a large amount of values from before the call.",
    "constructor": "A module computes with its weights when it is made, and a call uses the result. Copies are fine.",
    "forged": "The record of launches contradicts itself.",
    "wrong-value": "An element differs from the definition by more than the allowed error, which follows from "
    "modelled roundings of the definition in that dtype (docs/check.md). "
    "`draw` says on which inputs: `wide` ones are 32 times larger, `small` ones 1,024 times smaller, `mirrored` ones "
    "have the other sign, `spiked` ones hold single elements that are a thousand times larger, and rows of other "
    "magnitudes and signs, and `sparse` ones hold zeros and equal values.",
    "state": "The outputs may depend on what an earlier call left in memory: a kernel reads elements that it changes "
    "in every call, such as a counter that only grows. The verdict stays open.",
    "autotuned-state": "A kernel under an autotuner gives other results when it runs again. The autotuner runs it many "
    "times in the first call, and is not told to reset or restore the tensor.",
    "many-configurations": "The autotuner offers more configurations than the judge tries; any may be the fastest on a "
    "GPU. The verdict stays open.",
    "no-gradient": "The task wants a gradient that the candidate does not compute.",
    "out-of-bounds": "A program accesses memory outside of a tensor's storage.",
    "race": "Two programs of one launch access the same element, one of them writes, and neither uses an atomic.",
    "uninitialised": "A program reads, or the candidate returns, memory that nobody wrote.",
    "overflow": "32-bit arithmetic of an address overflows.",
    "false-hint": "A hint to the compiler (`tl.multiple_of`, `tl.assume`, …) is false, and the compiled kernel relies "
    "on it.",
    "changes-input": "The candidate writes into an input.",
    "kernel-error": "A kernel raises an error in the interpreter; the message names the line.",
    "replay-error": "The replay of the launches failed in a way that the judge has no name for; the message says how.",
    "needs-gpu": "The interpreter lacks an operation of the kernel, or the kernel can tell the interpreter from a GPU. "
    "The verdict stays open without a GPU.",
    "skipped-work": "An output of a timed replay is wrong or unwritten, though the first run was right: the launches "
    "do not compute in every call.",
    "gpu-error": "The GPU reports an error, such as an illegal address, when the launches run on it.",
    "compile-error": "The compiler rejects the kernel for a target.",
    "compiler": "The compiler crashed or took too long.",
}


def explained(kind: str) -> str:
    """Return what a kind of reason means. Raises KeyError with the known kinds."""
    if kind not in EXPLANATIONS:
        raise KeyError(f"{kind!r} is not one of {', '.join(EXPLANATIONS)}")
    return EXPLANATIONS[kind]
