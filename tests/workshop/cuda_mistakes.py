"""Mistakes in CUDA files, with the name of the catalogue's entry for each."""

from __future__ import annotations

FILE = """__global__ void kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = x[i] / (1.0f + expf(-x[i]));
    }
}

void run(const float* x, float* out, int n) {
    const int threads = 64;
    kernel<<<(n + 63) / 64, threads>>>(x, out, n);
}
"""

# A stand-in for CUDA's headers: the mistakes below need no more, and a compiler reads it at once.
PRELUDE = """#define __global__
struct dim3 { unsigned x, y, z; };
extern dim3 threadIdx, blockIdx, blockDim;
extern "C" float expf(float);
float atomicAdd(float* place, float value);
"""

# Entry, what is replaced in FILE, and by what.
MISTAKES = [
    ("cuda-semicolon", "threadIdx.x;", "threadIdx.x"),
    ("cuda-semicolon", "blockIdx.x * blockDim", "blockIdx.x blockDim"),
    ("cuda-semicolon", "threads = 64;", "threads = 64"),
    ("cuda-undeclared", "if (i < n)", "if (element < n)"),
    ("cuda-undeclared", "expf(", "exponential("),
    ("cuda-undeclared", "threadIdx", "threadidx"),
    ("cuda-undeclared", "int i =", "i ="),
    ("cuda-qualifier", "__global__", "__gobal__"),
    ("cuda-qualifier", "__global__", "_global_"),
    ("cuda-unknown-name", "    kernel<<<", "    cudaMallocAsync(&out, n, 0);\n    kernel<<<"),
    ("cuda-unknown-name", "    kernel<<<", "    cudaMemPool_t pool;\n    kernel<<<"),
    ("cuda-barrier-name", "    if (i < n)", "    syncthreads();\n    if (i < n)"),
    ("cuda-python-name", "expf(", "math.exp("),
    ("cuda-python-name", "__global__ void", "__global__ def"),
    ("cuda-python-loop", "if (i < n)", "for (int j in n)"),
    ("cuda-return-type", "__global__ void kernel", "__global__ kernel"),
    ("cuda-unknown-type", "void run", "vodi run"),
    ("cuda-unknown-type", "const int threads", "const threads"),
    ("cuda-launch-syntax", ">>>(x, out, n)", ">>(x, out, n)"),
    ("cuda-launch-syntax", "kernel<<<", "kernel<<"),
    ("cuda-launch-syntax", ">>>(x, out, n)", ">>> x, out, n"),
    ("cuda-colon", "if (i < n) {", "if (i < n):"),
    ("cuda-too-many-braces", "    }\n}", "    }\n}}"),
    ("cuda-missing-brace", "    }\n}", "    }\n"),
    ("cuda-condition", "if (i < n) {", "if i < n {"),
    ("cuda-bracket", "expf(-x[i]))", "expf(-x[i])"),
    ("cuda-argument-count", "expf(-x[i])", "expf(-x[i], 2.0f)"),
    ("cuda-argument-count", "expf(-x[i])", "expf()"),
    ("cuda-read-only", "out[i] =", "x[i] ="),
    ("cuda-left-side", "out[i] =", "out[i] + 1 ="),
    ("cuda-pointer-and-number", "if (i < n)", "if (x < n)"),
    ("cuda-power", "expf(-x[i])", "2 ** x[i]"),
    ("cuda-operands", "= x[i] /", "= x /"),
    ("cuda-subscript", "out[i] =", "i[n] ="),
    ("cuda-redeclared", "    if (i < n)", "    int i = 0;\n    if (i < n)"),
    ("cuda-types", "int i =", "float* i ="),
    ("cuda-types", "expf(-x[i])", "expf(x)"),
    ("cuda-member", "threadIdx.x", "threadIdx.w"),
    ("cuda-include", "__global__", "#include <cuda_runtim.h>\n__global__"),
    ("cuda-hash", "    if (i < n)", "    # an element\n    if (i < n)"),
    ("cuda-quote", "expf(", 'expf("'),
    ("cuda-stray", "= x[i]", "= −x[i]"),
    ("cuda-return", "out[i] =", "return"),
    ("cuda-else", "    }\n}", "    }\n    i = 0;\n    else { i = 1; }\n}"),
]

# Mistakes that only CUDA's own launch shows: these files include the whole cuda_runtime.h of the workshop.
LAUNCHES = [
    ("cuda-launch-arguments", "(x, out, n);", "(x, out);"),
    ("cuda-launch-arguments", "(x, out, n);", "(out, x, n);"),
    ("cuda-launch-configuration", ", threads>>>", ">>>"),
    ("cuda-no-such-function", "out[i] = ", "atomicAdd(out[i], 1.0f); out[i] = "),
]

# The words of other compilers for the same mistakes: clang++, then nvcc.
OTHER_COMPILERS = [
    ("cuda-semicolon", "expected ';' after expression"),
    ("cuda-semicolon", 'expected a ";"'),
    ("cuda-undeclared", "use of undeclared identifier 'element'"),
    ("cuda-undeclared", 'identifier "element" is undefined'),
    ("cuda-printf", 'identifier "printf" is undefined'),
    ("cuda-qualifier", "unknown type name '__gobal__'"),
    ("cuda-qualifier", 'identifier "__gobal__" is undefined'),
    ("cuda-unknown-name", "use of undeclared identifier 'cudaMallocAsync'; did you mean 'cudaMemsetAsync'?"),
    ("cuda-unknown-name", 'identifier "cudaMallocAsync" is undefined'),
    ("cuda-barrier-name", "use of undeclared identifier 'syncthreads'; did you mean '__syncthreads'?"),
    ("cuda-python-name", "use of undeclared identifier 'math'"),
    ("cuda-argument-count", "too few arguments to function call, expected 1, have 0"),
    ("cuda-argument-count", "too many arguments in function call"),
    ("cuda-missing-brace", "function definition is not allowed here"),
    ("cuda-too-many-braces", "extraneous closing brace ('}')"),
    ("cuda-read-only", "read-only variable is not assignable"),
    ("cuda-read-only", "expression must be a modifiable lvalue"),
    ("cuda-left-side", "expression is not assignable"),
    ("cuda-types", "cannot initialize a variable of type 'float *' with an rvalue of type 'unsigned int'"),
    ("cuda-types", 'argument of type "const float *" is incompatible with parameter of type "float *"'),
    ("cuda-no-such-function", "no matching function for call to 'atomicAdd'"),
    ("cuda-no-such-function", 'no instance of overloaded function "atomicAdd" matches the argument list'),
    ("cuda-member", "no member named 'w' in 'dim3'"),
    ("cuda-include", 'cannot open source file "cuda_runtim.h"'),
    ("cuda-undefined-function", "undefined reference to `helper(float)'"),
]
