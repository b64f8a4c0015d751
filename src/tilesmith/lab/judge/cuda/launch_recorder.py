"""C++ that stands between a candidate's host code and the CUDA runtime, and tells Python about each launch.

The linker's `--wrap` sends calls of these functions here; the functions themselves still run. A candidate that calls
the driver, or finds the functions by `dlsym`, escapes the recorder. Then its launches are not on the tape, and the
replay has none of their results.
"""

from __future__ import annotations

LAUNCH, FILL, COPY, OTHER = range(4)
DIMENSIONS = 11  # grid, block and cluster, then cooperative and early start
_LAUNCHES = (
    "__cudaRegisterFunction", "__cudaGetKernel", "__cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel", "cudaMemset", "cudaMemsetAsync", "cudaMemcpy", "cudaMemcpyAsync",
)  # fmt: skip
# Calls that change device memory, or launch, in ways that a tape does not hold.
_OTHERS = {
    "cudaMemcpyToSymbol": "const void* a, const void* b, size_t c, size_t d, enum cudaMemcpyKind e",
    "cudaMemcpyToSymbolAsync": "const void* a, const void* b, size_t c, size_t d, enum cudaMemcpyKind e, "
    "cudaStream_t f",
    "cudaMemcpy2D": "void* a, size_t b, const void* c, size_t d, size_t e, size_t f, enum cudaMemcpyKind g",
    "cudaMemcpy2DAsync": "void* a, size_t b, const void* c, size_t d, size_t e, size_t f, enum cudaMemcpyKind g, "
    "cudaStream_t h",
    "cudaMemset2D": "void* a, size_t b, int c, size_t d, size_t e",
    "cudaMemset2DAsync": "void* a, size_t b, int c, size_t d, size_t e, cudaStream_t f",
    "cudaGraphLaunch": "cudaGraphExec_t a, cudaStream_t b",
    "cudaLaunchHostFunc": "cudaStream_t a, cudaHostFn_t b, void* c",
}
WRAPPED = (*_LAUNCHES, *_OTHERS)

_HEAD = r"""
#include <cuda_runtime.h>
#include <stdint.h>

typedef void (*Recorder)(int kind, const char* name, const uint32_t* dimensions, uint64_t first, uint64_t second,
                         uint64_t third, uint64_t stream, void** arguments);
struct Entry { const void* key; const void* value; };
static Recorder recorder;
static Entry names[8192], kernels[8192];
static int name_count, kernel_count;

static const void* found(const Entry* entries, int count, const void* key) {
  for (int i = count - 1; i >= 0; --i) if (entries[i].key == key) return entries[i].value;
  return 0;
}
static void told(int kind, const char* name, const uint32_t* dimensions, uint64_t first, uint64_t second,
                 uint64_t third, cudaStream_t stream, void** arguments) {
  if (recorder) recorder(kind, name, dimensions, first, second, third, (uint64_t)stream, arguments);
}
static void launched(const void* function, dim3 grid, dim3 block, dim3 cluster, bool cooperative, bool early,
                     size_t shared, cudaStream_t stream, void** arguments) {
  const uint32_t dimensions[11] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z,
                                   cooperative, early};
  const char* name = (const char*)found(names, name_count, function);
  told(name ? 0 : 3, name ? name : "a kernel of another library", dimensions, shared, 0, 0, stream, arguments);
}

extern "C" {
__attribute__((visibility("default"))) void tilesmith_record_launches(Recorder given) { recorder = given; }

void __real___cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
void __wrap___cudaRegisterFunction(void** image, const char* function, char* device, const char* name, int limit,
                                   uint3* t, uint3* b, dim3* bd, dim3* gd, int* size) {
  if (name_count < 8192) names[name_count++] = {function, name};
  __real___cudaRegisterFunction(image, function, device, name, limit, t, b, bd, gd, size);
}
cudaError_t __real___cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  cudaError_t error = __real___cudaGetKernel(kernel, function);
  if (error == cudaSuccess && kernel_count < 8192) kernels[kernel_count++] = {(const void*)*kernel, function};
  return error;
}
cudaError_t __real___cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                      cudaStream_t stream) {
  launched(found(kernels, kernel_count, (const void*)kernel), grid, block, dim3(), false, false, shared, stream,
           arguments);
  return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t __real_cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t __wrap_cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                    cudaStream_t stream) {
  launched(function, grid, block, dim3(), false, false, shared, stream, arguments);
  return __real_cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
cudaError_t __real_cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t __wrap_cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                               size_t shared, cudaStream_t stream) {
  launched(function, grid, block, dim3(), true, false, shared, stream, arguments);
  return __real_cudaLaunchCooperativeKernel(function, grid, block, arguments, shared, stream);
}
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  dim3 cluster;
  bool cooperative = false, early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& one = config->attrs[i];
    if (one.id == cudaLaunchAttributeCooperative) cooperative = one.val.cooperative != 0;
    if (one.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      early = one.val.programmaticStreamSerializationAllowed != 0;
    if (one.id == cudaLaunchAttributeClusterDimension)
      cluster = dim3(one.val.clusterDim.x, one.val.clusterDim.y, one.val.clusterDim.z);
  }
  launched(function, config->gridDim, config->blockDim, cluster, cooperative, early, config->dynamicSmemBytes,
           config->stream, arguments);
  return __real_cudaLaunchKernelExC(config, function, arguments);
}
cudaError_t __real_cudaMemset(void*, int, size_t);
cudaError_t __wrap_cudaMemset(void* at, int value, size_t bytes) {
  told(1, "cudaMemset", 0, (uint64_t)at, (uint64_t)(value & 255), bytes, 0, 0);
  return __real_cudaMemset(at, value, bytes);
}
cudaError_t __real_cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t __wrap_cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  told(1, "cudaMemsetAsync", 0, (uint64_t)at, (uint64_t)(value & 255), bytes, stream, 0);
  return __real_cudaMemsetAsync(at, value, bytes, stream);
}
cudaError_t __real_cudaMemcpy(void*, const void*, size_t, enum cudaMemcpyKind);
cudaError_t __wrap_cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  told(2, "cudaMemcpy", 0, (uint64_t)to, (uint64_t)from, bytes, 0, 0);
  return __real_cudaMemcpy(to, from, bytes, kind);
}
cudaError_t __real_cudaMemcpyAsync(void*, const void*, size_t, enum cudaMemcpyKind, cudaStream_t);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  told(2, "cudaMemcpyAsync", 0, (uint64_t)to, (uint64_t)from, bytes, stream, 0);
  return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}
"""


def text() -> str:
    """Return the C++ of the recorder."""
    return _HEAD + "".join(_other(name, parameters) for name, parameters in _OTHERS.items()) + "}\n"


def _other(name: str, parameters: str) -> str:
    given = ", ".join(one.split()[-1] for one in parameters.split(","))
    return (
        f"cudaError_t __real_{name}({parameters});\n"
        f"cudaError_t __wrap_{name}({parameters}) {{\n"
        f'  told(3, "{name}", 0, 0, 0, 0, 0, 0);\n'
        f"  return __real_{name}({given});\n}}\n"
    )
