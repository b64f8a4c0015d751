"""Rules about precision: tf32, sums in half precision, error beside float64, infinities and NaN."""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.lab.inspect.findings.evidence import Evidence
from tilesmith.lab.inspect.model import Finding

MOST_ULP = {"fp64": 64.0, "fp32": 64.0, "fp16": 4.0, "bf16": 4.0}  # relative to the largest number of a block
_WORDS = {
    "fp_trunc": "a cast",
    "fp_to_fp": "a cast",
    "fdiv": "a division",
    "fmul": "a product",
    "fadd": "a sum",
    "other": "`other` of masked lanes",
}


def low_precision(evidence: Evidence) -> Iterator[Finding]:
    """Yield lines that compute in lower precision than their data, and lines with a large error beside float64."""
    log = evidence.trace.numbers
    for (file, line), what in log.dots.items():
        if what == "tf32":
            yield evidence.finding(
                "low-precision", "warning",
                "tl.dot multiplies float32 in tf32, which keeps 10 bits: three digits",
                'Pass input_precision="ieee", or "tf32x3", where three digits are too few.', file=file, line=line,
            )  # fmt: skip
        elif what == "tf32 of a sum":
            yield evidence.finding(
                "low-precision", "warning",
                "this sum of products becomes a dot of tf32 on NVIDIA GPUs, which keeps 10 bits: three digits",
                'Call tl.dot with input_precision="ieee", or swap the factors: then Triton leaves the sum alone.',
                file=file, line=line,
            )  # fmt: skip
        else:
            yield evidence.finding(
                "low-precision", "warning", f"tl.dot accumulates in {what}",
                "Accumulate in float32 and convert the result once.", file=file, line=line,
            )  # fmt: skip
    for (file, line), (name, additions) in log.sums.items():
        yield evidence.finding(
            "low-precision", "warning", f"{additions:,} additions in {name}, each of which rounds",
            "Add in float32: x.to(tl.float32).", file=file, line=line,
        )  # fmt: skip
    yield from _beside_float64(evidence)


def _beside_float64(evidence: Evidence) -> Iterator[Finding]:
    log = evidence.trace.numbers
    named = {*log.dots, *log.sums}
    for (_, line), stored in log.stored.items():
        blamed = log.blamed(stored.program)
        if stored.ulp <= MOST_ULP[stored.format] or blamed is None or blamed in named:
            continue
        named.add(blamed)
        message = f"most of the error of {stored.argument or 'the result'} arises here: {stored.ulp:,.0f} ulp of "
        message += f"{stored.format} beside float64 at the store in line {line}, relative to the largest number"
        yield evidence.finding(
            "low-precision", "warning", message,
            "Subtract before squaring or summing, compute this step in higher precision, or change its order.",
            file=blamed[0], line=blamed[1], program=stored.program,
        )  # fmt: skip


def not_finite(evidence: Evidence) -> Iterator[Finding]:
    """Yield operations that make infinities or NaN of finite inputs, where these reach a store."""
    for birth in evidence.trace.numbers.births.values():
        what = _WORDS.get(birth.operation, f"the operation {birth.operation}")
        message = f"{what} gives {birth.value} here, in program {birth.program}, and the store at line "
        message += f"{birth.stored_at} writes a number that is not finite, although all loaded numbers are"
        yield evidence.finding(
            "not-finite", "warning", message,
            "Subtract the maximum before exp, keep divisors and arguments of log positive, or widen the format.",
            file=birth.file, line=birth.line, program=birth.program,
        )  # fmt: skip
