"""Faults planted by hand in kernels of other libraries: `handmade_cases.py` calls them, `FAULTS` edits them.

    python benchmarks/inspect/handmade.py --root torchao=~/ao --root tutorials=~/triton/python/tutorials --json FILE

Each case first runs on the unchanged file. Then a fault replaces one or two fragments in a copy of it. A fault is found
if a finding of an expected kind, which the clean run does not have, names the kernel's line where it does harm. Nothing
of a library is stored here but the fragments.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import multiprocessing
import os
import resource
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from handmade_cases import CASES, stand_ins

SECONDS = 120  # of CPU time, for one call


@dataclass(frozen=True)
class Planted:
    """A fault: its case, its class, the fragments and what replaces them, and the kinds of findings that name it."""

    case: str
    kind: str
    edits: tuple[tuple[str, str], ...]
    expected: tuple[str, ...]
    compiles: bool = False  # the compiler finds it
    harmless: str = ""  # why the fault has no effect


def fault(case: str, kind: str, old: str, new: str, expected: str, **options: Any) -> Planted:
    return Planted(case, kind, ((old, new),), tuple(expected.split()), **options)


FAULTS = (
    fault("torchao_int8_mm", "wrong stride", "A += BLOCK_K * stride_ak", "A += BLOCK_K * stride_am", "out-of-bounds"),
    fault("torchao_int8_mm", "missing other", "rk[:, None] < k, other=0.0", "rk[:, None] < k", "undefined"),
    fault("torchao_int8_mm", "bounds", "multiple_of(rm % M, BLOCK_M)", "multiple_of(rm, BLOCK_M)", "out-of-bounds"),
    Planted(
        "tritonbench_matmul",
        "half accumulator",
        (
            ("tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)", "tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)"),
            ("accumulator += tl.dot(a, b)", "accumulator += tl.dot(a, b, out_dtype=tl.float16)"),
        ),
        ("low-precision",),
    ),
    fault("tritonbench_matmul", "false assume", "assume(pid_m >= 0)", "assume(pid_m > 0)", "false-hint"),
    fault("tritonbench_matmul", "mask", " & (offs_cn[None, :] < N)", "", "race out-of-bounds"),
    fault(
        "tritonbench_matmul",
        "floored grid",
        'triton.cdiv(N, META["BLOCK_N"])',
        '(N // META["BLOCK_N"])',
        "uninitialised",
    ),
    fault(
        "tritonbench_matmul", "wrong stride", "stride_cm * offs_cm[:,", "stride_cn * offs_cm[:,", "race uninitialised"
    ),
    fault(
        "lmdeploy_rotary",
        "false hint",
        "multiple_of(pos_offset % seq_len",
        "multiple_of((pos_offset + 1) % seq_len",
        "false-hint",
    ),
    fault(
        "lmdeploy_rotary",
        "wrong stride",
        "qel_ptrs += head_id * stride_qeh",
        "qel_ptrs += head_id * stride_qes",
        "out-of-bounds race uninitialised",
    ),
    fault(
        "mamba_bmm_chunk",
        "int32 overflow",
        "chunk_size * stride_a_seqlen +",
        "chunk_size * stride_a_seqlen * 1048576 // 1048576 +",
        "overflow",
    ),
    fault(
        "mamba_bmm_chunk",
        "bounds",
        "mask=(offs_m[:, None] < chunk_size_limit) & (offs_k",
        "mask=(offs_m[:, None] < chunk_size) & (offs_k",
        "out-of-bounds",
    ),
    fault(
        "mamba_state_passing",
        "wrong stride",
        "        out_ptrs += stride_out_chunk",
        "        out_ptrs += stride_out_head",
        "race uninitialised",
    ),
    fault("sglang_topk", "mask", "(mask_m[:, None] & mask_n[None, :])", "(mask_m[:, None])", "out-of-bounds"),
    fault("sglang_topk", "missing other", 'mask_n[None, :]), other=float("-inf")', "mask_n[None, :])", "undefined"),
    fault("sglang_topk", "mask", "y_indices, mask=mask_mk)", "y_indices, mask=mask_m[:, None])", "race out-of-bounds"),
    fault("sglang_merge_state", "exp overflow", "out_se = tl.exp(p_lse)", "out_se = tl.exp(300 + p_lse)", "not-finite"),
    fault(
        "lightllm_layer_norm",
        "view",
        "a = tl.load(X + cols, mask=cols < N,",
        "a = tl.load(X + cols, mask=cols < stride,",
        "out-of-bounds",
    ),
    fault("lightllm_layer_norm", "race", "row = tl.program_id(0)", "row = tl.program_id(0) // 2", "race uninitialised"),
    Planted(
        "lightllm_layer_norm",
        "half accumulator",
        (
            ("_var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)", "_var = tl.zeros([BLOCK_SIZE], dtype=tl.float16)"),
            ("_var += x * x", "_var += (x * x).to(tl.float16)"),
        ),
        ("low-precision",),
    ),
    fault(
        "lightllm_sum_reduce",
        "half accumulator",
        "tl.zeros((BLOCK_DIM,), dtype=tl.float32)",
        "tl.zeros((BLOCK_DIM,), dtype=tl.float16)",
        "low-precision",
    ),
    fault(
        "lightllm_sum_reduce",
        "int32 overflow",
        "dim_block_id = tl.program_id(1)",
        "dim_block_id = tl.program_id(1) * 67108864 * 64 // 64",
        "overflow",
    ),
    fault("lightllm_gelu", "uninitialised", "offsets < n_elements", "offsets < n_elements - 4", "uninitialised"),
    fault(
        "tutorials_layer_norm",
        "missing barrier",
        "    tl.debug_barrier()\n",
        "    pass\n",
        "race",
        harmless="Triton 3.9 puts a barrier before an atomic that releases; Triton 3.6 does not",
    ),
    fault(
        "tutorials_layer_norm",
        "atomics order",
        "tl.atomic_xchg(Lock, 0)",
        'tl.atomic_xchg(Lock, 0, sem="relaxed")',
        "race",
    ),
    fault(
        "tutorials_layer_norm",
        "atomics order",
        "tl.atomic_cas(Lock, 0, 1) ==",
        'tl.atomic_cas(Lock, 0, 1, sem="relaxed") ==',
        "race",
    ),
    fault("tutorials_layer_norm", "open lock", "tl.atomic_cas(Lock, 0, 1) ==", "tl.atomic_cas(Lock, 0, 0) ==", "race"),
    fault("tutorials_layer_norm", "bounds", "Lock + GROUP_SIZE_M", "Lock + GROUP_SIZE_M * 2", "out-of-bounds"),
    fault(
        "tutorials_layer_norm",
        "uninitialised",
        "torch.zeros(2 * GROUP_SIZE_M",
        "torch.empty(2 * GROUP_SIZE_M",
        "uninitialised",
    ),
    fault(
        "tutorials_tma",
        "descriptor",
        "b_desc.load([offs_bn, offs_k])",
        "b_desc.load([offs_k + offs_bn * 2, offs_k])",
        "out-of-bounds",
    ),
    fault(
        "tutorials_tma",
        "descriptor",
        "offs_cn = pid_n * BLOCK_SIZE_N\n    c_desc",
        "offs_cn = pid_n * BLOCK_SIZE_N * 2\n    c_desc",
        "out-of-bounds uninitialised",
    ),
    fault(
        "tutorials_device_descriptor",
        "descriptor",
        "shape=[N, K],\n        strides=[K, 1]",
        "shape=[N, K],\n        strides=[N, 1]",
        "out-of-bounds",
    ),
    fault(
        "tutorials_device_descriptor",
        "descriptor",
        "strides=[N, 1],\n        block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if",
        "strides=[N - 8, 1],\n        block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if",
        "race uninitialised",
    ),
    fault("unsloth_grouped_gemm", "mask", "[:, None] < m_size\n", "[:, None] < m_size + 8\n", "race out-of-bounds"),
    fault(
        "unsloth_grouped_gemm",
        "descriptor",
        "x_desc.load([m_start + off_am, k_offset])",
        "x_desc.load([m_start + off_am, K + k_offset])",
        "out-of-bounds",
    ),
    fault("gluon_copy", "missing wait", "    cp.wait_group(0)\n\n    value", "    pass\n\n    value", "race"),
    fault(
        "gluon_add", "missing wait", "cp.wait_group(0)\n\n        a_val", "cp.wait_group(1)\n\n        a_val", "race"
    ),
    fault(
        "gluon_tma",
        "missing wait",
        "    mbarrier.wait(bars.index(read_index % num_buffers), read_phase)",
        "    pass",
        "race",
    ),
    fault("gluon_tma", "missing wait", "    tma.store_wait(pendings=0)\n    c_smem", "    pass\n    c_smem", "race"),
    fault(
        "gluon_tma",
        "missing fence",
        "c_smem.store(c_val)\n    fence_async_shared()",
        "c_smem.store(c_val)\n    pass",
        "race",
        harmless="the compiler inserts the fence: the PTX has as many as before",
    ),
    fault(
        "gluon_tma",
        "wrong phase",
        "read_phase = read_index // num_buffers & 1",
        "read_phase = 1 - (read_index // num_buffers & 1)",
        "kernel-error",
    ),
    fault(
        "gluon_wgmma",
        "missing wait",
        "    d = warpgroup_mma_wait(num_outstanding=0, deps=(d, ))",
        "    pass",
        "compile-error",
        compiles=True,
    ),
)


def changed(text: str, edits: tuple[tuple[str, str], ...]) -> tuple[str, list[int]]:
    """Return the text with each fragment replaced, its lines keeping their numbers, and the edited lines."""
    lines: list[int] = []
    for old, new in edits:
        if old not in text:
            raise ValueError(f"the file does not have {old!r}")
        lines.append(text[: text.index(old)].count("\n") + 1)
        text = text.replace(old, new, 1)
    return text, lines


def definitions(text: str, file: str) -> Any:
    """Return the code of a script without the calls that run its tests and benchmarks."""
    tree = ast.parse(text)
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    words = ("randn", "benchmark")
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, kept)
        and not (isinstance(node, ast.Assign) and any(word in ast.unparse(node) for word in words))
    ]
    return compile(tree, file, "exec")


def run(case: str, text: str, source: Path, compiles: bool, pipe: Any) -> None:
    """Inspect one call in this process, a fork; send its findings."""
    import torch

    from tilesmith.lab.inspect import inspection_of, watching
    from tilesmith.lab.inspect.options import InspectOptions
    from tilesmith.lab.inspect.session import Session
    from tilesmith.toolchain.compiler import Target

    class Uncompiled(Session):
        """A session without the compiler, which takes most of the time."""

        def _binary(self, launched: Any, target: Any) -> str:
            return "not compiled"

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    file = Path(tempfile.mkdtemp()) / source.name
    file.write_text(text)
    sys.path.insert(0, str(source.parent))
    stand_ins()
    module = ModuleType("field.case")
    module.__dict__.update(__file__=str(file), __package__="field", HAS_APEX=False)
    sys.modules["field.case"] = module
    options = InspectOptions(targets=(Target.parse("cuda:90"),), asked=True, seconds=1.0)
    session, error = (Session if compiles else Uncompiled)(options, has_gpu=False), ""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            with watching(session):
                is_script = CASES[case].library == "tutorials"
                code = definitions(text, str(file)) if is_script else compile(text, str(file), "exec")
                exec(code, module.__dict__)
                results = CASES[case].call(module)
                for result in results if isinstance(results, tuple) else (results,):
                    result.float().sum().item()  # the script reads every element
                with torch._C.DisableTorchFunction():
                    session.run_deferred()
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"[:200]
    found = inspection_of(session, case)
    findings = [
        (one.kind, one.severity, one.line, one.message)
        for one in found.findings
        if one.severity != "info" and (compiles or one.kind != "compile-error")
    ]
    pipe.send((len(found.kernels), findings, error))
    pipe.close()
    os._exit(0)


def inspected(case: str, text: str, source: Path, compiles: bool = False) -> tuple[int, list[Any], str]:
    """Return the number of kernels, the findings and the error of one call."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(case, text, source, compiles, theirs))
    process.start()
    theirs.close()
    result: tuple[int, list[Any], str] = (0, [], f"more than {SECONDS} s of CPU time")
    with contextlib.suppress(EOFError):
        result = ours.recv()
    process.join()
    return result


def verdict(planted: Planted, clean: list[Any], found: list[Any]) -> tuple[str, str]:
    """Return "found", "no effect" or "missed", and the finding or the reason.

    "found" is a finding of an expected kind, at a line where the clean kernel has none of that kind. Whether it is the
    line of the fault is for a reader to see.
    """
    before = {(kind, line) for kind, _, line, _ in clean}
    new = [one for one in found if one[0] in planted.expected and (one[0], one[2]) not in before]
    if new:
        kind, severity, line, message = new[0]
        return "found", f"{severity}, {kind} at line {line}: {message}"[:300]
    return ("no effect", planted.harmless) if planted.harmless else ("missed", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", action="append", default=[], metavar="LIBRARY=FOLDER")
    parser.add_argument("--case", action="append", default=[], help="only cases whose names start so")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch
    import triton

    import tilesmith
    import tilesmith.lab.inspect.session  # imported before the forks

    roots = {name: Path(path).expanduser() for name, _, path in (one.partition("=") for one in options.root)}
    versions = {"tilesmith": tilesmith.__version__, "torch": torch.__version__, "triton": triton.__version__}
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if case.library not in roots or not (not options.case or any(name.startswith(one) for one in options.case)):
            continue
        source = roots[case.library] / case.file
        text = source.read_text()
        kernels, clean, error = inspected(name, text, source)
        errors = [one for one in clean if one[1] == "error"]
        word = "not run" if error or not kernels else "false error" if errors else "clean"
        rows.append({"case": name, "fault": "none", "verdict": word, "finding": error or str(errors[:1] or "")})
        print(f"{word:10} {name} {error}", flush=True)
        for planted in (one for one in FAULTS if one.case == name):
            faulty, lines = changed(text, planted.edits)
            word, finding = verdict(planted, clean, inspected(name, faulty, source, planted.compiles)[1])
            rows.append({"case": name, "fault": planted.kind, "lines": lines, "verdict": word, "finding": finding})
            print(f"{word:10} {name} {planted.kind} {lines} {finding[:110]}", flush=True)
            if options.json:
                options.json.write_text(json.dumps({**versions, "rows": rows}, indent=1) + "\n")
    print(Counter(row["verdict"] for row in rows))


if __name__ == "__main__":
    main()
