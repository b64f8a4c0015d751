"""Small kernels with one mistake each, by the name of the entry that explains the error."""

# In a body, @L loads a block from x_ptr into x, and @S stores x; @O makes offsets o, @A loads a tile a, @B stores b.
BODIES = (
    ("subscript-of-pointer", "x = x_ptr[offsets]\n@S"),
    ("sum-of-pointers", "tl.store(out_ptr + offsets, x_ptr + y_ptr, mask=mask)"),
    ("sum-of-pointers", "x = (x_ptr + offsets) + (y_ptr + offsets)\n@S"),
    ("pointer-as-number", "x = (x_ptr + offsets) * 2\n@S"),
    ("arithmetic-on-pointer", "x = tl.load(x_ptr + offsets / 2, mask=mask)\n@S"),
    ("store-of-pointer", "tl.store(out_ptr + offsets, x_ptr + offsets, mask=mask)"),
    ("function-of-pointer", "x = tl.exp(x_ptr + offsets)\n@S"),
    ("load-of-number", "x = tl.load(offsets, mask=mask)\n@S"),
    ("load-of-number", "@L\nx = tl.load(x, mask=mask)\n@S"),
    ("truth-of-block", "@L\nif offsets < n:\n    x = x + 1\n@S"),
    ("truth-of-block", "@L\nwhile x > 0:\n    x = x - 1\n@S"),
    ("ternary-of-block", "@L\nx = x if x > 0 else 0.0\n@S"),
    ("no-allocator", "x = tl.make_tensor_descriptor(x_ptr, [n], [1], [BLOCK]).load([0])\n@S"),
    ("arange-not-constant", "o = tl.arange(0, n)\nx = tl.load(x_ptr + o)\n@S"),
    ("arange-not-power", "o = tl.arange(0, 48)\ntl.store(out_ptr + o, 1.0)"),
    ("arange-order", "o = tl.arange(8, 0)\ntl.store(out_ptr + o, 1.0)"),
    ("missing-argument", "o = tl.arange(BLOCK)\ntl.store(out_ptr + o, 1.0)"),
    ("shape-not-constant", "@L\nx = x + tl.zeros((n,), dtype=tl.float32)\n@S"),
    ("shape-not-power", "x = tl.zeros((48,), dtype=tl.float32)\n@S"),
    ("missing-argument", "x = tl.zeros((BLOCK,))\n@S"),
    ("incompatible-shapes", "@L\nz = tl.arange(0, 16)\nx = x + z\n@S"),
    (
        "pointers-and-value-differ",
        "x = tl.load(x_ptr + offsets[:, None] + offsets[None, :])\n@S",
    ),
    ("pointers-and-value-differ", "x = tl.load(x_ptr + offsets, mask=mask[:, None])\n@S"),
    ("mask-not-boolean", "@L\nx = tl.load(x_ptr + offsets, mask=x)\n@S"),
    ("mask-not-boolean", "x = tl.load(x_ptr + offsets, n)\n@S"),
    ("other-without-mask", "x = tl.load(x_ptr + offsets, other=0.0)\n@S"),
    ("store-with-other", "tl.store(out_ptr + offsets, 1.0, mask=mask, other=0.0)"),
    ("print", "@L\nprint(x.shape)\nprint('x', n)\n@S"),
    ("foreign-function", "@L\nx = math.exp(x)\n@S"),
    ("name-in-branch", "@L\nx = x * factor\n@S"),
    ("global-variable", "@L\nx = x * SCALE\n@S"),
    ("no-such-function", "@L\nx = tl.relu(x)\n@S"),
    ("no-such-function", "x = tl.laod(x_ptr + offsets, mask=mask)\n@S"),
    ("python-number", "@L\nx = x + int(tl.program_id(0))\n@S"),
    ("python-number", "@L\nx = float(x)\n@S"),
    ("text", "x = tl.load(x_ptr + offsets, mask=mask, other='-inf')\n@S"),
    ("no-mean", "@L\nx = x - tl.mean(x, axis=0)\n@S"),
    ("no-mean", "@L\nx = x * tl.var(x)\n@S"),
    ("no-such-method", "@L\nx = x.relu()\n@S"),
    ("index-into-block", "@L\nx = x.item()\n@S"),
    ("index-into-block", "@L\nx = x[0]\n@S"),
    ("index-into-block", "@L\nx = x[0:4]\n@S"),
    ("assignment-to-element", "@L\nx[0] = 1.0\n@S"),
    ("assignment-through-pointer", "@L\nout_ptr[offsets] = x"),
    ("python-reduction", "@L\ntl.store(out_ptr, sum(x))"),
    ("python-reduction", "@L\ntl.store(out_ptr, max(x))"),
    ("range-as-block", "x = tl.load(x_ptr + range(BLOCK))\n@S"),
    ("range-as-block", "x = tl.load(x_ptr + (offsets + range(0, BLOCK)))\n@S"),
    ("not-called", "x = tl.load(x_ptr + tl.program_id * BLOCK)\n@S"),
    ("not-called", "@L\nx = x * tl.exp\n@S"),
    ("foreign-value", "x = tl.load(x_ptr + (tl.program_id(0) * BLOCK + torch.arange(0, BLOCK)))\n@S"),
    ("foreign-value", "x = tl.load(x_ptr + (tl.program_id(0) * BLOCK + np.arange(0, BLOCK)))\n@S"),
    ("list", "@L\nrows = []\nfor i in range(4):\n    rows.append(x)\n@S"),
    ("list", "@L\nrows = [x for i in range(4)]\n@S"),
    ("list", "x = list((BLOCK,), dtype=tl.float32)\n@S"),
    ("python-reduction", "@L\nx = sum([x for i in range(4)])\n@S"),
    ("syntax-of-python", "@L\nd = {'a': 1}\nx = x * d['a']\n@S"),
    ("f-string", "@L\ns = f'{n}'\n@S"),
    ("raise", "@L\ntry:\n    x = x + 1\nexcept ValueError:\n    pass\n@S"),
    ("context-manager", "@L\nwith torch.no_grad():\n    x = x + 1\n@S"),
    ("syntax-of-python", "@L\nf = lambda v: v + 1\nx = f(x)\n@S"),
    ("nested-function", "@L\ndef f(v):\n    return v + 1\nx = f(x)\n@S"),
    ("break", "@L\nfor i in range(4):\n    if n > 3:\n        break\n@S"),
    ("break", "@L\nfor i in range(4):\n    if n > 3:\n        continue\n    x += 1\n@S"),
    ("return-in-loop", "@L\nfor i in range(4):\n    if n > 3:\n        return\n@S"),
    ("return-value", "@L\n@S\nreturn x"),
    ("raise", "@L\nraise ValueError('no')\n@S"),
    ("loop-changes-type", "acc = 0\nfor i in range(0, n):\n    acc += 0.5\ntl.store(out_ptr, acc)"),
    (
        "loop-changes-type",
        "acc = 0.0\nfor i in range(0, n):\n    acc += offsets\ntl.store(out_ptr + offsets, acc)",
    ),
    ("branches-differ", "if n > 3:\n    x = 1\nelse:\n    x = 2.0\ntl.store(out_ptr, x)"),
    ("name-in-branch", "if n > 3:\n    x = 1.0\ntl.store(out_ptr, x)"),
    ("dot-of-vectors", "@L\nx = tl.dot(x, x)\n@S"),
    (
        "dot-too-small",
        "o = tl.arange(0, 4)\n@A\nb = tl.dot(a, a)\n@B",
    ),
    (
        "dot-inner-size",
        "@O\na = tl.load(x_ptr + o[:, None] + offsets[None, :])\nb = tl.dot(a, a)\n@B",
    ),
    (
        "dot-dtypes",
        "@O\n@A\nb = tl.dot(a, a.to(tl.float16))\n@B",
    ),
    (
        "dot-accumulator",
        "@O\n@A\nb = tl.dot(a, a, tl.zeros((16,), dtype=tl.float32))\n@B",
    ),
    (
        "dot-dtypes",
        "@O\na = o[:, None] + o[None, :]\nb = tl.dot(a, a)\n@B",
    ),
    (
        "matmul-operator",
        "@O\n@A\nb = a @ a\n@B",
    ),
    ("transpose-of-vector", "@L\nx = tl.trans(x)\n@S"),
    ("axis-too-large", "@L\nx = x + tl.sum(x, axis=1)\n@S"),
    ("unknown-keyword", "@L\nx = x + tl.sum(x, dim=0)\n@S"),
    ("axis-too-large", "i = tl.program_id(3)\ntl.store(out_ptr + i, 1.0)"),
    ("missing-argument", "i = tl.program_id()\ntl.store(out_ptr + i, 1.0)"),
    ("foreign-dtype", "@L\nx = x.to('float16')\n@S"),
    ("foreign-dtype", "@L\nx = x.to(torch.float16)\n@S"),
    ("no-such-method", "@L\nx = x.float()\n@S"),
    ("operands-of-float", "@L\nx = x & 1\n@S"),
    ("operands-of-float", "@L\nx = tl.where(x > 0 | x < 3, x, 0)\n@S"),
    ("function-of-integer", "x = tl.exp(offsets)\n@S"),
    ("name-in-branch", "@L\nx = abs(x)\n@S"),
    ("reduction-of-two", "@L\nx = tl.max(x, 0.0)\n@S"),
    ("static-assert", "tl.static_assert(BLOCK == 64)\n@L\n@S"),
    ("too-many-arguments", "@L\ntl.store(out_ptr, offsets, x, mask)"),
    ("value-for-scalar-pointer", "@L\ntl.store(out_ptr, x, mask=mask)"),
    ("mask-for-scalar-pointer", "x = tl.load(x_ptr, mask=mask)\n@S"),
    ("loop-bounds", "@L\nfor i in range(0, n / 2):\n    x += i\n@S"),
    ("loop-bounds", "@L\nfor i in range(offsets):\n    x += i\n@S"),
    ("static-range", "@L\nfor i in tl.static_range(n):\n    x += i\n@S"),
    ("loop-over-block", "for v in offsets:\n    tl.store(out_ptr + v, 1.0)"),
    ("too-many-arguments", "@L\nx = helper(x, 2)\n@S"),
    ("unpacked-block", "@L\na, b = x\n@S"),
    ("reshape-size", "@L\nx = tl.reshape(x, (16,))\n@S"),
    ("broadcast-rank", "@L\nx = tl.broadcast_to(x, (16, 16))\n@S"),
    (
        "block-too-large",
        "o = tl.arange(0, 2097152)\ntl.store(out_ptr + o, 1.0, mask=o < n)",
    ),
    (
        "block-does-not-fit",
        "@O\nk = tl.arange(0, 4096)\na = tl.load(x_ptr + o[:, None] + k[None, :])\nb = tl.dot(a, tl.trans(a))\n@B",
    ),
    ("comparison-operator", "@L\nif n in (1, 2):\n    x += 1\n@S"),
    ("syntax-of-python", "global SCALE\n@L\n@S"),
    ("no-such-method", "@L\nx = x * len(x)\n@S"),
    ("power", "@L\nx = x ** 2\n@S"),
    ("floor-division-of-float", "@L\nx = x // 2\n@S"),
    ("none-in-arithmetic", "x = tl.load(x_ptr + offsets, mask=None) + None\n@S"),
    ("unknown-keyword", "x = tl.load(x_ptr + offsets, masks=mask)\n@S"),
    ("computed-index-into-block", "@L\nx = x[tl.program_id(0)]\n@S"),
    ("computed-index-into-block", "@L\nfor i in range(n):\n    x = x + x[i]\n@S"),
    ("function-of-half", "@L\nx = tl.exp(x.to(tl.float16))\n@S"),
    ("function-of-half", "@L\nx = tl.sigmoid(x.to(tl.bfloat16))\n@S"),
    ("not-of-number", "@L\nx = not x\n@S"),
    ("not-of-number", "@L\nx = ~x\n@S"),
    ("foreign-dtype", "x = tl.zeros((BLOCK,), dtype=torch.float32)\n@S"),
    ("foreign-dtype", "x = tl.zeros((BLOCK,), dtype='float32')\n@S"),
    ("foreign-dtype", "x = tl.zeros((BLOCK,), dtype=float)\n@S"),
    ("truth-of-block", "@L\nx += 1 if mask else 0\n@S"),
    ("no-such-constant", "x = tl.load(x_ptr + offsets, mask=mask, other=-tl.inf)\n@S"),
    ("no-threads", "o = tl.thread_id(0)\n@L\n@S"),
    ("no-matmul", "@L\nx = tl.matmul(x, x)\n@S"),
    ("no-power", "@L\nx = tl.pow(x, 2)\n@S"),
    ("size-of-pointer", "mask = offsets < x_ptr.numel()\n@L\n@S"),
    ("size-of-pointer", "mask = offsets < x_ptr.shape[0]\n@L\n@S"),
    ("size-of-pointer", "x = tl.load(x_ptr + offsets * x_ptr.stride(0))\n@S"),
    ("size-of-pointer", "mask = offsets < len(x_ptr)\n@L\n@S"),
    ("no-such-shape-method", "@L\nx = x.unsqueeze(0)\n@S"),
    ("shape-not-a-tuple", "x = tl.zeros(BLOCK, BLOCK, dtype=tl.float32)\n@S"),
    ("shape-not-a-tuple", "x = tl.zeros(BLOCK, BLOCK)\n@S"),
    ("function-of-the-host", "@L\nx = x + triton.cdiv(n, BLOCK)\n@S"),
    ("function-of-the-host", "@L\nx = x + triton.next_power_of_2(n)\n@S"),
    ("not-known-when-compiling", "@L\nx = tl.topk(x, n)\n@S"),
    ("not-known-when-compiling", "@L\nx = tl.histogram(x.to(tl.int32), n)\n@S"),
    ("numpy-number", "@L\nx = x * np.float32(2)\n@S"),
)
LAUNCHES = (
    ("grid-not-a-tuple", "kernel[programs](x, y, out, n, BLOCK=32)"),
    ("grid-not-a-tuple", "kernel[(programs)](x, y, out, n, BLOCK=32)"),
    ("grid-not-whole", "kernel[(n / 32,)](x, y, out, n, BLOCK=32)"),
    ("grid-negative", "kernel[(-1,)](x, y, out, n, BLOCK=32)"),
    ("grid-dimensions", "kernel[(1, 1, 1, 1)](x, y, out, n, BLOCK=32)"),
    ("launch-without-grid", "kernel(x, y, out, n, BLOCK=32)"),
    ("missing-launch-argument", "kernel[(programs,)](x, y, n, BLOCK=32)"),
    ("missing-launch-argument", "kernel[(programs,)](x, y, out, n)"),
    ("argument-twice", "kernel[(programs,)](x, y, out, n, 32, BLOCK=32)"),
    ("argument-kind", "kernel[(programs,)](x, [1, 2], out, n, BLOCK=32)"),
    ("argument-kind", "kernel[(programs,)](x, 'y', out, n, BLOCK=32)"),
    ("argument-kind", "kernel[(programs,)](x, x.numpy(), out, n, BLOCK=32)"),
    ("tuple-argument", "kernel[(programs,)](x, y, out, x.shape, BLOCK=32)"),
    ("load-of-number", "kernel[(programs,)](3, y, out, n, BLOCK=32)"),
    ("none-in-arithmetic", "kernel[(programs,)](None, y, out, n, BLOCK=32)"),
    ("load-of-number", "kernel[(programs,)](x.data_ptr(), y, out, n, BLOCK=32)"),
    ("foreign-dtype", "kernel[(programs,)](x, y, out, n, BLOCK=torch.tensor(32))"),
    ("arange-not-constant", "kernel[(programs,)](x, y, out, n, BLOCK=32.0)"),
    ("arange-not-power", "kernel[(programs,)](x, y, out, n, BLOCK=33)"),
    ("warps", "kernel[(programs,)](x, y, out, n, BLOCK=32, num_warps=3)"),
    ("pointer-as-number", "kernel[(programs,)](x, y, out, x, BLOCK=32)"),
    ("not-a-kernel", "run[(programs,)](x, y, out, n, BLOCK=32)"),
    ("launch-without-grid", "kernel(x, y, out, n, BLOCK=32)[(programs,)]"),
    ("grid-function", "kernel[lambda: (programs,)](x, y, out, n, BLOCK=32)"),
    ("unknown-launch-keyword", "kernel[(programs,)](x, y, out, n, BLOCK=32, num_warp=4)"),
)

FUNCTION = """import torch


class ScaleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        SAVE
        return x * factor

    @staticmethod
    def backward(ARGUMENTS):
        x, = ctx.saved_tensors
        return RESULT


def run():
    x = torch.ones(3, requires_grad=True)
    CALL
"""
_RIGHT = {
    "SAVE": "ctx.save_for_backward(x)", "ARGUMENTS": "ctx, gradient", "RESULT": "gradient, None",
    "CALL": "ScaleFunction.apply(x, 2.0).sum().backward()",
}  # fmt: skip
_MODULE = """class Scale(torch.nn.Module):
        def __init__(self):
            self.weight = torch.nn.Parameter(torch.ones(1))
    Scale()"""


def function_with(**changes: str) -> str:
    """Return the source of an autograd function, right but for the changes."""
    source = FUNCTION
    for name, code in {**_RIGHT, **changes}.items():
        source = source.replace(name, code)
    return source


# Files with one mistake each around a kernel.
FILES = (
    ("backward-arguments", function_with(ARGUMENTS="gradient")),
    ("number-of-gradients", function_with(RESULT="gradient")),
    ("nothing-saved", function_with(SAVE="pass")),
    ("saves-no-tensor", function_with(SAVE="ctx.save_for_backward(x, factor)")),
    ("function-without-apply", function_with(CALL="ScaleFunction(x, 2.0).sum()")),
    ("forward-without-apply", function_with(CALL="ScaleFunction.forward(None, x, 2.0)")),
    ("module-without-super", function_with(CALL=_MODULE)),
    ("calls-itself", "def run():\n    return run()\n"),
    ("grid-constant", "def run():\n    grid = lambda meta: (8 // meta['BLOCK'],)\n    grid({'BLOCK_SIZE': 4})\n"),
    ("one-time", "def do_bench(work):\n    return 1.0\n\n\ndef run():\n    median, fast, slow = do_bench(print)\n"),
)
