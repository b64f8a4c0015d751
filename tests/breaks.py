"""Plant one break at a time in a copy of the sources, and see that the named test goes red.

A test that stays green on a broken kernel asserts nothing. Each break below replaces one piece of text in one file and
names the tests that must fail. `make test-breaks` runs all of them; a fast test keeps every piece of text findable.

    python tests/breaks.py [WORD…]    # only the breaks whose name contains one of the words
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Break(NamedTuple):
    """One fault: in `file`, `text` becomes `fault`; the tests that `tests` selects must then fail."""

    name: str
    file: str  # below src/tilesmith
    text: str  # its first occurrence is replaced
    fault: str
    tests: str  # arguments of pytest, as in a shell


BREAKS = [
    # Masks.
    Break(
        "elementwise tiles at the end count as whole",
        "ops/device/elementwise.py",
        "return has_rows & ((across + 1) * BLOCK_SIZE <= n_columns)",
        "return has_rows",
        "tests/ops/test_silu.py",
    ),
    Break(
        "a copy for TMA takes rows past the matrix for its own",
        "ops/matmul/kernels/realign.py",
        "mask=in_rows & (columns < padded)[None, :])",
        "mask=(columns < padded)[None, :])",
        "tests/ops/matmul/test_matmul_any_shape.py",
    ),
    Break(
        "a part of a group reads another head's keys",
        "ops/attention/kernels/backward.py",
        "whole_head = key_head // n_parts",
        "whole_head = key_head % n_parts",
        "tests/ops/attention/test_attention.py -k split",
    ),
    Break(
        "wide heads leave out the columns past the first 128 of a score",
        "ops/attention/kernels/wide_heads.py",
        "return tl.dot(a[1], tl.trans(b[1]), tl.dot(a[0], tl.trans(b[0])))",
        "return tl.dot(a[0], tl.trans(b[0]))",
        "tests/ops/attention/test_attention_wide_heads.py -k match_float64",
    ),
    Break(
        "a query of wide heads sees keys outside its window",
        "ops/attention/kernels/wide_heads.py",
        'scores = tl.where(seen, scores, float("-inf"))',
        "scores = tl.where(seen, scores, scores)",
        "tests/ops/attention/test_attention_wide_heads.py -k match_float64",
    ),
    Break(
        "a part of a group of wide heads reads another head's keys",
        "ops/attention/kernels/wide_heads.py",
        "k = load_head(k_first, k_rest, sequence, key_head // n_parts, start)",
        "k = load_head(k_first, k_rest, sequence, key_head % n_parts, start)",
        "tests/ops/attention/test_attention_wide_heads.py -k match_float64",
    ),
    Break(
        "rows of 72 elements are loaded one by one",
        "ops/attention/problem.py",
        '"aligned" if in_units and not known else "near"',
        '"near"',
        "tests/ops/attention/test_attention_wide_heads.py -k whole_units",
    ),
    Break(
        "the rule of check does not count the terms that indices add",
        "lab/rounding_model.py",
        "    if call.name in SCATTERED:",
        "    if call.name in ():",
        "tests/lab/verdicts/test_verdicts.py -k many_terms",
    ),
    Break(
        "the rule of check takes a window for one term",
        "lab/rounding_model.py",
        "return prod(next(one for one in call.args if isinstance(one, list)))",
        "return 1",
        "tests/lab/verdicts/test_verdicts.py -k overlapping_windows",
    ),
    Break(
        "an operator of a compiled graph skips the dispatcher with a gradient",
        "ops/runtime/kernels.py",
        "if named or torch.is_grad_enabled() or",
        "if named or",
        "tests/ops/runtime/test_compiled_calls.py",
    ),
    Break(
        "bench changes the inputs of calls that do not follow",
        "lab/bench/measuring/timing.py",
        "stir([places[0]])",
        "stir(places)",
        "tests/lab/bench/test_timed_calls.py -k match_their_inputs",
    ),
    Break(
        "the predicted time forgets that a load is waited for",
        "lab/inspect/metrics/predicted_time.py",
        "            self.time.cycles = self._ready[last]",
        "            self.time.cycles += 0",
        "tests/lab/inspect/test_predicted_time.py",
    ),
    Break(
        "triangle_multiply rounds the mean of equal elements",
        "ops/triangle_multiply/fused/rows.py",
        "if loaded.dtype == COMPUTE:",
        "if loaded.dtype != COMPUTE:",
        "tests/ops/test_layer_norm.py -k equal_elements",
    ),
    Break(
        "δ of wide heads leaves out the columns past the first 128",
        "ops/attention/kernels/wide_heads.py",
        "delta += tl.sum(output[1].to(tl.float32) * doutput[1].to(tl.float32), axis=1)",
        "delta += 0.0",
        "tests/ops/attention/test_attention_wide_heads.py -k match_float64",
    ),
    Break(
        "dk of wide heads lacks the scale",
        "ops/attention/kernels/wide_heads.py",
        "share = 1.0 if OF_VALUES else scale",
        "share = 1.0",
        "tests/ops/attention/test_attention_wide_heads.py -k match_float64",
    ),
    Break(
        "the last part of a group is not added",
        "ops/attention/kernels/group_parts.py",
        "here = mask & (first + part < n_parts)",
        "here = mask & (first + part < n_parts - 1)",
        "tests/ops/attention/test_attention.py -k split",
    ),
    Break(
        "a copy for TMA ends a column early",
        "ops/matmul/kernels/realign.py",
        "mask=in_rows & (columns < n_columns)[None, :], other=0.0)",
        "mask=in_rows & (columns < n_columns - 1)[None, :], other=0.0)",
        "tests/ops/matmul/test_matmul_any_shape.py",
    ),
    Break(
        "an odd depth is padded in one operand only",
        "ops/matmul/planning/alignment.py",
        'names = ["a", "b"] if product.depth % 4 else _unwalkable(product)',
        "names = _unwalkable(product)",
        "tests/ops/matmul/test_matmul_any_shape.py",
    ),
    Break(
        "a transposed operand is copied in the wrong orientation",
        "ops/matmul/planning/alignment.py",
        "side.strides[1] != 1 and side.strides[0] == 1",
        "side.strides[1] == 1",
        "tests/ops/matmul/test_matmul_any_shape.py",
    ),
    Break(
        "odd rows read past their end",
        "ops/device/aligned_rows.py",
        "lanes < lead, columns < n_columns)",
        "lanes < lead, columns <= n_columns)",
        "tests/ops/test_softmax.py -k 'test_every_form and registers'",
    ),
    Break(
        "softmax counts zeros past a row's end",
        "ops/softmax/forward.py",
        'x = tl.load(x_pointers, mask=mask, other=float("-inf")).to(COMPUTE)',
        "x = tl.load(x_pointers, mask=mask, other=0.0).to(COMPUTE)",
        "tests/ops/test_softmax.py -k 'test_every_form and registers'",
    ),
    Break(
        "layer_norm variance counts columns past the end",
        "ops/layer_norm/forward.py",
        "centred = tl.where(mask, x - mean, 0.0)",
        "centred = x - mean",
        "tests/ops/test_layer_norm.py -k test_layer_norm_matches_pytorch",
    ),
    Break(
        "any-width layer_norm forgets the mask of the edges",
        "ops/device/norms/any_width_kernels.py",
        "apart = tl.where(is_edge, x_edges - mean, 0.0)",
        "apart = x_edges - mean",
        "tests/ops/device/norms/test_any_width.py -k 'matches_float64 and layer_norm'",
    ),
    Break(
        "matmul reads one product past the depth",
        "ops/matmul/kernels/pointers.py",
        "in_depth = depths < depth - start",
        "in_depth = depths <= depth - start",
        "tests/ops/matmul/test_matmul.py -k 'reads_nothing_beyond and pointers'",
    ),
    Break(
        "conv2d on Hopper takes every second column for the first of its group",
        "ops/conv2d/hopper/gather.py",
        "place = column_place * sizes.source_column + channel",
        "place = channel",
        "tests/ops/test_conv2d_hopper.py -k hopper_matches_torch",
    ),
    Break(
        "conv2d on Hopper stores the second half of a box over the first",
        "ops/conv2d/hopper/boxes.py",
        "return (0, part * rows // 2, 0) if",
        "return (0, 0, 0) if",
        "tests/ops/test_conv2d_hopper.py -k hopper_matches_torch",
    ),
    Break(
        "conv2d on Hopper frees a slot that is still read",
        "ops/conv2d/hopper/gather.py",
        "mbarrier.arrive(memory.free.index((number + STAGES - 1) % STAGES), count=1, pred=step > 0)",
        "mbarrier.arrive(memory.free.index(slot), count=1, pred=step > 0)",
        "tests/ops/test_conv2d_hopper.py -k hopper_matches_torch",
    ),
    Break(
        "conv2d's weight gradient on Hopper leaves out the partial sums of one warpgroup",
        "ops/conv2d/hopper/weight_gradient.py",
        "        split += PART",
        "        split += 0",
        "tests/ops/test_conv2d_hopper.py -k weight_gradient_tile",
    ),
    Break(
        "conv2d on Hopper takes images whose last group of rows is incomplete",
        "ops/conv2d/hopper/boxes.py",
        "if of_channel != 1 or height % down or",
        "if of_channel != 1 or",
        "tests/ops/test_conv2d_hopper.py -k portable_kernel",
    ),
    Break(
        "conv2d reads rows above the image",
        "ops/conv2d/pointers.py",
        "return place.to(tl.uint32) < tl.cast(size, tl.uint32)",
        "return place < size",
        "tests/ops/test_conv2d.py -k padding_same",
    ),
    Break(
        "transpose reads one column too many",
        "ops/transpose.py",
        "(columns < n_columns)[None, :]",
        "(columns <= n_columns)[None, :]",
        "tests/ops/test_transpose.py -k any_layout",
    ),
    Break(
        "cross_entropy counts zeros past the last class",
        "ops/cross_entropy/forward.py",
        'x = tl.load(x_pointers, mask=mask, other=float("-inf"))',
        "x = tl.load(x_pointers, mask=mask, other=0.0)",
        "tests/ops/test_cross_entropy.py -k matches_torch_cross_entropy",
    ),
    Break(
        "triangle_multiply variance counts absent channels",
        "ops/triangle_multiply/fused/rows.py",
        "centred = tl.where(in_row, x - mean, 0.0)",
        "centred = x - mean",
        "tests/ops/triangle_multiply/test_triangle_multiply.py -k 'several_tiles_match_float64 or pair_by_pair'",
    ),
    Break(
        "AdamW updates past the end of a parameter",
        "optim/adamw_kernels.py",
        "factors, offsets < count,",
        "factors, None,",
        "tests/optim/test_adamw.py -k four_steps_match_torch",
    ),
    Break(
        "sum adds elements past the summed side",
        "ops/sum.py",
        "mask = in_kept[:, None] & in_reduced[None, :]",
        "mask = in_kept[:, None]",
        "tests/ops/test_sum.py -k split_sums",
    ),
    Break(
        "max_pool2d takes zero from the padding",
        "ops/device/images/pooling_forward.py",
        'OTHER: tl.constexpr = float("-inf") if OF_MAXIMA else 0.0',
        "OTHER: tl.constexpr = 0.0",
        "tests/ops/test_pooling.py -k 'every_window and max_pool2d'",
    ),
    Break(
        "outer_product_mean divides by the eps of absent pairs",
        "ops/outer_product_mean/inverse_counts.py",
        "(1 / (eps + count)).masked_fill(count == 0, 0.0)",
        "1 / (eps + count)",
        "tests/ops/test_outer_product_mean.py -k fully_masked",
    ),
    Break(
        "attention ignores the key mask in dk and dv",
        "ops/attention/kernels/backward.py",
        "attended = is_attended(mask_ptr, mask_strides, place, start, columns[:, None], n_keys)",
        "attended = start + columns[:, None] < n_keys",
        "tests/ops/attention/test_attention.py -k 'keys_that_are_masked or mask_is_per_key'",
    ),
    Break(
        "triangle_multiply keeps masked pairs",
        "ops/triangle_multiply/fused/forward.py",
        "        if mask_ptr is not None:\n            gated = tl.where(unmasked, gated, 0.0)\n",
        "",
        "tests/ops/triangle_multiply/test_triangle_multiply.py -k masked_pairs_do_not",
    ),
    Break(
        "a query sees the key after its own",
        "ops/attention/device/tiles.py",
        "(keys <= queries + (n_keys - n_queries) + right)",
        "(keys <= queries + (n_keys - n_queries) + right + 1)",
        "tests/ops/attention/test_attention.py -k 'last_query_stands or both_are_as_long'",
    ),
    Break(
        "keys before the first that is attended to count as unmasked",
        "ops/attention/device/tiles.py",
        "all_begin = tl.maximum(all_begin, tl.cdiv(first, BLOCK_KEYS) * BLOCK_KEYS)",
        "all_begin = tl.maximum(all_begin, first // BLOCK_KEYS * BLOCK_KEYS)",
        "tests/ops/attention/test_attention.py -k TestPadding",
    ),
    Break(
        "a mask with a hole counts as padding",
        "ops/attention/device/tiles.py",
        "has_hole = n_attended < last - first",
        "has_hole = n_attended < 0",
        "tests/ops/attention/test_attention.py -k TestPadding",
    ),
    # Signs.
    Break(
        "silu's gradient subtracts the slope of its sigmoid",
        "ops/silu.py",
        "dx = dy * sigmoid * (1 + x * (1 - sigmoid))",
        "dx = dy * sigmoid * (1 - x * (1 - sigmoid))",
        "tests/ops/every_operator/test_gradcheck.py -k silu",
    ),
    Break(
        "layer_norm's gradient keeps the mean of its cotangent",
        "ops/layer_norm/backward_kernels.py",
        "dx = inverse_deviation * (scaled - scaled_mean - normed",
        "dx = inverse_deviation * (scaled - normed",
        "tests/ops/every_operator/test_gradcheck.py -k layer_norm",
    ),
    Break(
        "gelu in 16 bits takes the same tail on both sides",
        "ops/device/activations.py",
        "below = tl.where(x < 0, tail, 1 - tail)",
        "below = tail",
        "tests/ops/test_gelu.py",
    ),
    Break(
        "rope rotates first elements backwards",
        "ops/rope/kernel.py",
        "first * cos[0] - second * sin[0]",
        "first * cos[0] + second * sin[0]",
        "tests/ops/test_rope.py -k rotates_pairs_as_complex",
    ),
    Break(
        "rope gradient rotates forwards",
        "ops/rope/kernel.py",
        "sin = tl.where(inverse != 0, -sin[1], sin[0]), tl.where(inverse != 0, -sin[0], sin[1])",
        "sin = tl.where(inverse != 0, sin[1], sin[0]), tl.where(inverse != 0, sin[0], sin[1])",
        "tests/ops/test_rope.py -k gradient_rotates_back",
    ),
    Break(
        "rms_norm gradient adds the projection",
        "ops/rms_norm/backward.py",
        "dx = inverse_rms * (scaled - x * (",
        "dx = inverse_rms * (scaled + x * (",
        "tests/ops/test_norm_forms.py -k 'test_norm_form_matches_the_reference and rms_norm and backward_kernel'",
    ),
    Break(
        "softmax gradient adds the sum",
        "ops/softmax/backward.py",
        "dx = y * (dy - total)",
        "dx = y * (dy + total)",
        "tests/ops/test_softmax.py -k 'test_every_form and registers'",
    ),
    Break(
        "attention dq adds delta",
        "ops/attention/kernels/backward.py",
        "dscores = weights * (dweights - delta[:, None])",
        "dscores = weights * (dweights + delta[:, None])",
        "tests/ops/attention/test_attention.py -k test_agrees_with_the_reference",
    ),
    Break(
        "cross_entropy subtracts the logarithm",
        "ops/cross_entropy/rows.py",
        "loss = (shift - target_logit) + tl.log(row_sum)",
        "loss = (shift - target_logit) - tl.log(row_sum)",
        "tests/ops/test_cross_entropy.py -k matches_torch_cross_entropy",
    ),
    Break(
        "any-width gradient adds the projection at the edges",
        "ops/device/norms/any_width_kernels.py",
        "dx = factor * (scaled_edges - scaled_mean - normed * correction)",
        "dx = factor * (scaled_edges - scaled_mean + normed * correction)",
        "tests/ops/device/norms/test_any_width.py -k matches_float64",
    ),
    Break(
        "AdamW grows weights instead of decaying them",
        "optim/adamw_kernels.py",
        "p -= decay * p",
        "p += decay * p",
        "tests/optim/test_adamw.py -k four_steps_match_torch",
    ),
    # Strides and offsets.
    Break(
        "rows of nested layouts use another dimension's size",
        "ops/runtime/layout.py",
        "index_1 = rows // sizes[2] % sizes[1]",
        "index_1 = rows // sizes[1] % sizes[2]",
        "tests/ops/test_rms_norm.py -k takes_any_strides",
    ),
    Break(
        "matmul batches exchange two strides",
        "ops/matmul/kernels/tiles.py",
        "index_1 * strides[1] + index_2 * strides[2]",
        "index_1 * strides[2] + index_2 * strides[1]",
        "tests/ops/matmul/test_matmul.py -k broadcast_forward_and_backward",
    ),
    Break(
        "rope forgets the stride of second elements",
        "ops/rope/kernel.py",
        "((pairs + n_pairs) * stride)[None, :]",
        "(pairs * stride + n_pairs)[None, :]",
        "tests/ops/test_rope.py -k takes_any_strides",
    ),
    Break(
        "conv2d exchanges the weight's two strides",
        "ops/conv2d/pointers.py",
        "weight_row * weight.strides[2] + weight_column * weight.strides[3]",
        "weight_row * weight.strides[3] + weight_column * weight.strides[2]",
        "tests/ops/test_conv2d.py -k every_way_to_load",
    ),
    Break(
        "transpose counts a short last group as a full one",
        "ops/transpose.py",
        "// group_height\n",
        "// GROUP\n",
        "tests/ops/every_operator/test_operators_are_right.py -k 'transpose and past'",
    ),
    Break(
        "outer_product_mean exchanges with the wrong pitch",
        "ops/outer_product_mean/backward_passes.py",
        "second.to(tl.int64) * n_first + first",
        "second.to(tl.int64) * n_second + first",
        "tests/ops/test_outer_product_mean.py -k transposed_equals_torch_transpose",
    ),
    Break(
        "attention counts far rows with 32 bits",
        "ops/attention/device/tiles.py",
        'tl.int64 if WALK == "far" else tl.int32',
        "tl.int32",
        "tests/ops/attention/test_attention.py -k further_apart_than_32_bits",
    ),
    Break(
        "every part of a row counts the edges as its own",
        "ops/device/norms/any_width_kernels.py",
        "return of_middle + tl.where(parts == 0, n_columns - length, 0)",
        "return of_middle + n_columns - length",
        "tests/ops/test_norm_forms.py -k last_part",
    ),
    Break(
        "a team forgets the mean of the scaled gradient",
        "ops/device/norms/team_backward.py",
        "scaled_mean = first_total / n_columns",
        "scaled_mean = tl.zeros_like(first_total)",
        "tests/ops/test_norm_forms.py -k 'last_part and layer_norm'",
    ),
    Break(
        "every program of a team adds the edges of its row",
        "ops/device/norms/team_backward.py",
        "is_edge &= part == 0",
        "pass",
        "tests/ops/test_norm_forms.py -k last_part",
    ),
    Break(
        "cross_entropy leaves the edges of a wide row out of its sum",
        "ops/cross_entropy/wide_rows.py",
        "row_sum += tl.sum(exponential(edges - shift), axis=0)",
        "row_sum += 0.0",
        "tests/ops/test_cross_entropy.py -k edges_are_part_of_the_row",
    ),
    Break(
        "softmax does not wait until the words of its teams are clear",
        "ops/softmax/forward.py",
        "wait_for_launch_before(OVERLAPS)",
        "wait_for_launch_before(False)",
        "tests/ops/device/test_overlapped.py -k kernel_that_overlaps_waits",
    ),
    Break(
        "cross_entropy loads the next part of a row as its own",
        "ops/cross_entropy/wide_rows.py",
        "mask=next_columns < end,",
        "mask=next_columns < length,",
        "tests/ops/test_cross_entropy.py -k edges_are_part_of_the_row",
    ),
    Break(
        "cross_entropy joins the parts of a row without their maxima",
        "ops/cross_entropy/wide_rows.py",
        "row_sum = tl.sum(sums * exponential(maximum - shift), axis=1)[:, None]",
        "row_sum = tl.sum(sums, axis=1)[:, None]",
        "tests/ops/test_cross_entropy.py -k edges_are_part_of_the_row",
    ),
    Break(
        "cross_entropy looks for the target of an edge at its place in the block",
        "ops/cross_entropy/backward.py",
        "gradient_of(edges, edge_columns == target,",
        "gradient_of(edges, edge_columns == target_in_block,",
        "tests/ops/test_cross_entropy.py -k edges_are_part_of_the_row",
    ),
    Break(
        "rows without keys get the mean of v, and its gradient is forgotten",
        "ops/triangle_attention/grid.py",
        "plan_fully_masked(problem, doutput, gradients[2])",
        "pass",
        "tests/ops/test_triangle_attention.py -k get_the_mean_of_v",
    ),
    Break(
        "the aligned copy of a bias forgets its heads",
        "ops/attention/kernels/aligned_bias.py",
        "+ head * bias_strides[1]",
        "+ 0 * bias_strides[1]",
        "tests/ops/test_triangle_attention.py -k copied_bias_is_the_bias",
    ),
    Break(
        "layer_norm's backward takes the mean for the inverse deviation",
        "ops/device/norms/rows.py",
        "tl.load(pointer + 2 * rows + 1, mask=mask, other=0.0)",
        "tl.load(pointer + 2 * rows, mask=mask, other=0.0)",
        "tests/ops/device/norms/test_any_width.py -k many_chunks",
    ),
    Break(
        "a chunk's sum counts distances from zero, not from the mean",
        "ops/device/norms/any_width_kernels.py",
        "value = x[place].to(COMPUTE) - mean if CENTRE else x[place].to(COMPUTE)",
        "value = x[place].to(COMPUTE)",
        "tests/ops/device/norms/test_any_width.py -k 'matches_float64 and layer_norm'",
    ),
    Break(
        "layer_norm leaves the rounding of the mean",
        "ops/layer_norm/forward.py",
        "    mean += error\n",
        "",
        "tests/ops/test_layer_norm.py -k equal_elements",
    ),
    Break(
        "layer_norm keeps statistics that nobody needs",
        "ops/layer_norm/operator.py",
        "wants_gradient((x, weight, bias))",
        "True",
        "tests/ops/test_layer_norm.py -k nobody_trains",
    ),
    Break(
        "teams may be larger than the GPU",
        "ops/device/teams.py",
        "return parts == 1 or (is_gpu and parts <= plan.multiprocessors)",
        "return parts == 1 or is_gpu",
        "tests/ops/device/test_teams.py",
    ),
    Break(
        "a team reads its numbers through a cache",
        "ops/device/teams.py",
        "other=MARK, volatile=True)",
        "other=MARK)",
        "tests/ops/device/test_teams.py",
    ),
    Break(
        "rms_norm reads a strided weight as contiguous",
        "ops/device/norms/rows.py",
        "pointers = weight.pointer + columns * weight.stride",
        "pointers = weight.pointer + columns",
        "tests/ops/test_rms_norm.py -k takes_any_strides",
    ),
    # Dispatch and planning.
    Break(
        "softmax holds rows that are wider than its block",
        "ops/softmax/rows.py",
        "return problem.rows.middle(problem.config.EDGES) <= problem.config.BLOCK_SIZE",
        "return True",
        "tests/ops/runtime/test_dispatch.py -k 'do_not_depend_on_the_configuration and softmax'",
    ),
    Break(
        "chunks of a softmax end before the row's last chunk",
        "ops/softmax/rows.py",
        "CHUNKS=chunks_of(-(-middle // parts), problem.config.BLOCK_SIZE)",
        "CHUNKS=max(middle // parts // problem.config.BLOCK_SIZE, 1)",
        "tests/ops/test_softmax.py -k rows_in_chunks",
    ),
    Break(
        "a team of programs forgets the sums of its other parts",
        "ops/softmax/backward.py",
        "total = tl.sum(hear_team(words, n_parts, 1, PARTS)[0], axis=0)",
        "total += 0 * tl.sum(hear_team(words, n_parts, 1, PARTS)[0], axis=0)",
        "tests/ops/test_softmax.py -k last_part_of_a_team",
    ),
    Break(
        "copies of a norm's parameters all start with the first column",
        "ops/device/norms/any_width_kernels.py",
        "weight = tl.load(weight_ptr + (columns + lead) * weight_stride, mask=mask)",
        "weight = tl.load(weight_ptr + columns * weight_stride, mask=mask)",
        "tests/ops/device/norms/test_any_width.py -k copies_of_parameters",
    ),
    Break(
        "products of little depth leave out the last step",
        "ops/matmul/kernels/pointers.py",
        "    for step in range(depth):",
        "    for step in range(depth - 1):",
        "tests/ops/matmul/test_matmul.py -k 'little_depth'",
    ),
    Break(
        "a norm of narrow odd rows counts the columns past the end",
        "ops/device/norms/persistent_forward.py",
        "if place == CHUNKS - 1:  # the other chunks are full",
        "if place == CHUNKS:",
        "tests/ops/device/norms/test_any_width.py -k 'persistent and matches'",
    ),
    Break(
        "any-width gradient mixes rows of several alignments",
        "ops/device/norms/any_width.py",
        "programs = min(triton.cdiv(problem.walk.rows, alike), max(problem.most_programs // alike, 1)) * alike",
        "programs = min(problem.walk.rows, problem.most_programs)",
        "tests/ops/device/norms/test_any_width.py -k one_alignment",
    ),
    Break(
        "interpret mode leaves CPU tensors to PyTorch",
        "ops/runtime/dispatch.py",
        'return chosen == "interpret" or interpreter.is_interpreting()',
        "return interpreter.is_interpreting()",
        "tests/ops/runtime/test_dispatch.py -k 'interpret_mode_runs_kernels'",
    ),
    Break(
        "an exception leaves the mode of its block",
        "ops/runtime/dispatch.py",
        "_enter(self._befores.pop()",
        "if error is None: _enter(self._befores.pop()",
        "tests/ops/runtime/test_dispatch.py -k mode_ends",
    ),
    Break(
        "tuned configurations are not noticed",
        "ops/runtime/dispatch.py",
        "one.epoch = next(_epochs)",
        "pass",
        "tests/ops/runtime/test_tuning.py",
    ),
    Break(
        "sum does not split few long sums",
        "ops/sum.py",
        "pieces // FEWEST_PIECES)",
        "FEWEST_PIECES // pieces)",
        "tests/ops/test_sum.py -k splits_few_long_sums",
    ),
    Break(
        "matmul asks the pointer kernel before TMA",
        "ops/matmul/planning/choose.py",
        "    Tma(),  # Hopper, operands loaded by TMA\n    Pointers(),",
        "    Pointers(),\n    Tma(),",
        "tests/ops/matmul/test_matmul.py -k follows_pytorchs_switch",
    ),
    Break(
        "avg_pool2d divides clipped windows by a constant",
        "ops/device/images/pooling.py",
        "unpadded or (count_padding and within)",
        "unpadded or count_padding",
        "tests/ops/test_pooling.py -k 'every_window and avg_pool2d'",
    ),
    # Dtypes and rounding.
    Break(
        "sum rounds partial sums to the dtype of x",
        "ops/sum.py",
        "return torch.float64 if dtype == torch.float64 else torch.float32",
        "return dtype",
        "tests/ops/test_sum.py -k keeps_partial_sums",
    ),
    Break(
        "interpreter rounds bf16 ties away from zero",
        "toolchain/interpreter/numerics.py",
        "np.uint32(0x7FFF) + last_kept",
        "np.uint32(0x8000)",
        "tests/toolchain/test_interpreter_numerics.py -k rounds_like_torch_for_every_upper_half",
    ),
    Break(
        "interpreter rounds a double twice to bf16",
        "toolchain/interpreter/numerics.py",
        "values.dtype == np.float32 else _to_odd(values)",
        "values.dtype == np.float32 else values.astype(np.float32)",
        "tests/toolchain/test_interpreter_numerics.py -k double_is_rounded_once",
    ),
    Break(
        "add_rms_norm norms a sum that is not rounded",
        "ops/rms_norm/forward.py",
        "x = (x + residual).to(summands.total.pointer.dtype.element_ty).to(COMPUTE)",
        "x = x + residual",
        "tests/ops/test_add_rms_norm.py",
    ),
    Break(
        "AdamW corrects its bias in single precision",
        "optim/adamw_kernels.py",
        "1.0 - tl.exp(step * tl.log(beta2))",
        "1.0 - tl.exp((step * tl.log(beta2)).to(tl.float32))",
        "tests/optim/test_adamw.py -k bias_corrections_are_exact",
    ),
    # Races and order.
    Break(
        "rms_norm programs share one row of partial sums",
        "ops/rms_norm/backward.py",
        "tl.store(weight_partials_ptr + first * n_columns + columns,",
        "tl.store(weight_partials_ptr + columns,",
        "tests/ops/test_norm_forms.py -k 'test_norm_form_matches_the_reference and rms_norm and backward_kernel'",
    ),
    Break(
        "race finder misses lanes that disagree",
        "lab/inspect/tracing/sanitizer.py",
        "& (values[1:] != values[:-1])",
        "& (values[1:] < values[:-1])",
        "tests/lab/inspect/test_sanitizer.py -k conflicting_lanes",
    ),
    Break(
        "race finder takes every shared store for one value",
        "lab/inspect/tracing/sanitizer.py",
        "same = shared is not None and _stores_what_is_there(access, shadow, shared)",
        "same = shared is not None",
        "tests/lab/inspect/test_sanitizer.py -k overlapping_stores",
    ),
    Break(
        "side stream does not wait for its arguments",
        "ops/runtime/composing/side_stream.py",
        "side.wait_stream(self._main)",
        "self._main.wait_stream(side)",
        "tests/ops/runtime/test_side_stream.py",
    ),
    Break(
        "main stream does not wait for the side stream",
        "ops/runtime/composing/side_stream.py",
        "self._main.wait_stream(_side_of(self._main))",
        "_side_of(self._main)",
        "tests/ops/runtime/test_side_stream.py",
    ),
    # Gradients.
    Break(
        "layer_norm bias gradient is scaled by the weight",
        "ops/layer_norm/backward_kernels.py",
        "bias_gradient += dy\n",
        "bias_gradient += scaled\n",
        "tests/ops/test_norm_forms.py -k 'test_norm_form_matches_the_reference and layer_norm and backward_kernel'",
    ),
    Break(
        "triangle_multiply gate has the wrong slope",
        "ops/triangle_multiply/fused/backward.py",
        "(doutput * output * (1 - opening))",
        "(doutput * output * opening)",
        "tests/ops/triangle_multiply/test_triangle_multiply.py -k several_tiles_match_float64",
    ),
    Break(
        "attention dq forgets the scale",
        "ops/attention/kernels/backward.py",
        "start, dq * scale, BLOCK_QUERIES",
        "start, dq, BLOCK_QUERIES",
        "tests/ops/attention/test_attention.py -k test_agrees_with_the_reference",
    ),
    Break(
        "attention dq forgets the slope of the soft cap",
        "ops/attention/kernels/backward.py",
        "            if softcap is not None:\n                dscores *= slope\n            if mask_ptr is",
        "            if mask_ptr is",
        "tests/ops/attention/test_attention.py -k soft_cap",
    ),
    Break(
        "max_pool2d gradient goes to the last of equal elements",
        "ops/device/images/pooling_forward.py",
        "is_larger = (value > pooled)",
        "is_larger = (value >= pooled)",
        "tests/ops/test_max_pool2d.py -k first_of_equal",
    ),
    Break(
        "cross_entropy gradient forgets the target's smoothing",
        "ops/cross_entropy/backward.py",
        "dloss * (1 - label_smoothing) + for_others, for_others",
        "dloss * (1 - label_smoothing), for_others",
        "tests/ops/test_cross_entropy.py -k matches_torch_cross_entropy",
    ),
    Break(
        "silu slope lacks a term",
        "ops/matmul/kernels/epilogue.py",
        "slope = sigmoid * (1 + bounded * (1 - sigmoid))",
        "slope = sigmoid * (1 - sigmoid)",
        "tests/ops/matmul/test_matmul.py -k 'test_gradients and silu'",
    ),
    Break(
        "sum gradient puts summed dimensions first",
        "ops/sum.py",
        "dy = dy.unsqueeze(place)",
        "dy = dy.unsqueeze(0)",
        "tests/ops/test_sum.py -k any_dimensions_of_any_layout",
    ),
    Break(
        "avg_pool2d gradient multiplies by the divisor",
        "ops/device/images/pooling_backward.py",
        "dx = dx / DIVISOR",
        "dx = dx * DIVISOR",
        "tests/ops/test_pooling.py -k 'every_window and avg_pool2d'",
    ),
    Break(
        "softmax gradient forgets the edges' sum",
        "ops/softmax/backward.py",
        "            total += sum_of_edges(dy_rows + edges, y_rows + edges, is_edge, COMPUTE)\n",
        "",
        "tests/ops/every_operator/test_operators_are_right.py -k softmax",
    ),
    Break(
        "rms_norm_relu gradient forgets the weight's sign",
        "ops/rms_norm/backward.py",
        "dy = tl.where(x * weight <= 0, 0.0, dy)",
        "dy = tl.where(x <= 0, 0.0, dy)",
        "tests/ops/test_rms_norm_relu.py",
    ),
    # Lab, training and workshop.
    Break(
        "check passes a tensor with one wrong element",
        "lab/comparison.py",
        "self.wrong_elements == 0 and self.error <= self.allowed",
        "self.error <= self.allowed",
        "tests/lab/test_check.py -k one_wrong_element_of_very_many",
    ),
    Break(
        "check allows NaN",
        "lab/comparison.py",
        "torch.where(error.isnan(), torch.inf, error - allowed)",
        "(error - allowed).nan_to_num()",
        "tests/lab/test_check.py -k 'nan or mistake'",
    ),
    Break(
        "check allows twice the error",
        "lab/comparison.py",
        "wrong = excess > 0",
        "wrong = excess > allowed",
        "tests/lab/test_check.py",
    ),
    Break(
        "gradient guard misses infinity",
        "training/running/gradient_guard.py",
        "broken = ~sizes.isfinite()",
        "broken = sizes.isnan()",
        "tests/training/running/test_gradient_guard.py",
    ),
    Break(
        "gradient guard blames parameters of later steps",
        "training/running/gradient_guard.py",
        "torch.where(self._broken.any(), self._broken, broken, out=self._broken)",
        "torch.where(broken.any(), broken, self._broken, out=self._broken)",
        "tests/training/running/test_gradient_guard.py",
    ),
    Break(
        "workshop check skips a tuned kernel's second candidate",
        "workshop/checking/triton_check.py",
        "enumerate(call.candidates) if number > 0",
        "enumerate(call.candidates) if number > 1",
        "tests/workshop/test_triton_check.py -k every_candidate",
    ),
    Break(
        "check accepts NaN where the reference has a number",
        "lab/comparison.py",
        "return (one == other) | ((one != one) & (other != other))",
        "return (one == other) | (one != one)",
        "tests/lab/test_check.py",
    ),
    Break(
        "interpreter allows accesses that begin at a tensor's end",
        "toolchain/interpreter/memory.py",
        "return self.start <= first and last <= self.end",
        "return self.start <= first <= self.end",
        "tests/toolchain/test_interpreter.py -k 'out_of_bounds or stray'",
    ),
    Break(
        "sum places partial sums by the inner run alone",
        "ops/sum.py",
        "pieces_per_split=pieces_per_split, split_stride=kept.elements,",
        "pieces_per_split=pieces_per_split, split_stride=kept.inner,",
        "tests/ops/test_sum.py -k do_not_merge",
    ),
    Break(
        "shadow memory keeps the first of two readers",
        "lab/inspect/tracing/shadow_memory.py",
        "_first(_others(readers, program), self.earlier_reader[places])",
        "_first(self.earlier_reader[places], _others(readers, program))",
        "tests/lab/inspect/test_shadow_memory.py",
    ),
    Break(
        "shadow memory takes the program itself for another reader",
        "lab/inspect/tracing/shadow_memory.py",
        "_first(_others(readers, program), self.earlier_reader[places])",
        "_first(readers, self.earlier_reader[places])",
        "tests/lab/inspect/test_shadow_memory.py",
    ),
    Break(
        "sanitizer takes any two locks for one",
        "lab/inspect/tracing/sanitizer.py",
        "time > last and address in acquired",
        "time > last and acquired",
        "tests/lab/inspect/test_sanitizer.py -k different_locks",
    ),
    Break(
        "sanitizer overlooks loads after another program's store",
        "lab/inspect/tracing/sanitizer.py",
        'self._conflicts("read-write", access, argument, shadow, places, written_by, number)',
        "pass",
        "tests/lab/inspect/test_sanitizer.py -k load_after_the_store",
    ),
    Break(
        "workshop accepts the result of an earlier input",
        "workshop/checking/triton_check.py",
        "if not _all_right(expected, after):",
        "if False:",
        "tests/workshop/test_triton_check.py -k earlier_input",
    ),
    Break(
        "the interpreter adds the bits of bfloat16",
        "toolchain/interpreter/numerics.py",
        'if left.dtype.kind in "fi" and right.dtype.kind in "fi":',
        'if left.dtype.kind in "fiu" and right.dtype.kind in "fiu":',
        "tests/toolchain/test_interpreter_numerics.py -k bfloat16_arithmetic",
    ),
    Break(
        "a descriptor reads one element past its tensor",
        "toolchain/interpreter/tiles.py",
        "inside = inside & ((offset >= 0) & (offset < _spread(length, len(block))))",
        "inside = inside & ((offset >= 0) & (offset <= _spread(length, len(block))))",
        "tests/toolchain/test_interpreter.py -k descriptor",
    ),
    Break(
        "programs multiply the operand of another program",
        "toolchain/interpreter/together/shared_rows.py",
        "np.matmul(left[rows[0]], right[rows[1]], out=one)",
        "np.matmul(left[rows[0]], right[rows[0]], out=one)",
        "tests/toolchain/test_lockstep.py -k shared",
    ),
    Break(
        "a product is kept although an operand changed",
        "toolchain/benchmarks.py",
        "_digest(left), _digest(right)",
        "_digest(right)",
        "tests/toolchain/test_interpreter_numerics.py -k large_product",
    ),
    Break(
        "the interpreter divides half types in half precision",
        "toolchain/interpreter/shapes.py",
        "(not div_or_mod or lhs.dtype.primitive_bitwidth >= 32)",
        "True",
        "tests/toolchain/test_interpreter_numerics.py -k quotient",
    ),
    Break(
        "the interpreter takes a constant of another dtype",
        "toolchain/interpreter/shapes.py",
        "key = lhs.dtype.name, type(rhs), rhs, rules",
        "key = type(rhs), rhs, rules",
        "tests/toolchain/test_interpreter_shapes.py -k same_number",
    ),
    Break(
        "the interpreter promotes two dtypes like an earlier pair",
        "toolchain/interpreter/shapes.py",
        "pair = lhs.dtype.name, rhs.dtype.name, rules",
        "pair = lhs.dtype.name, rules",
        "tests/toolchain/test_interpreter_shapes.py -k promoted",
    ),
    Break(
        "backward changes what it saved",
        "ops/runtime/autograd.py",
        "        gradients = (gradient if is_simple else careful)(context, *output_gradients)\n",
        "        gradients = gradient(context, *output_gradients)\n        context.saved_tensors[0].data.mul_(2)\n",
        "tests/ops/every_operator/test_autograd.py -k accumulate",
    ),
    Break(
        "a quick operator compares with less for less or equal",
        "toolchain/interpreter/shapes.py",
        '"le": ("create_fcmpOLE", "create_icmpSLE")',
        '"le": ("create_fcmpOLE", "create_icmpSLT")',
        "tests/toolchain/test_interpreter_shapes.py -k quick",
    ),
    Break(
        "a quick product forgets how its factors were broadcast",
        "toolchain/interpreter/shapes.py",
        "(multiplies and dtype.is_floating())",
        "(multiplies and not dtype.is_floating())",
        "tests/toolchain/test_interpreter_shapes.py -k quick",
    ),
    Break(
        "the interpreter forgets the sign of zero",
        "toolchain/interpreter/shapes.py",
        "(type(operand) is float and operand != 0)",
        "type(operand) is float",
        "tests/toolchain/test_interpreter_shapes.py -k same_number",
    ),
    Break(
        "prove asks an absent network again and again",
        "training/proof/subject.py",
        "local_files_only=not is_reachable",
        "local_files_only=False",
        "tests/cli/test_prove_command.py -k unknown_name",
    ),
    Break(
        "capped logits have the gradient of logits without a cap",
        "ops/cross_entropy/loss_and_gradient.py",
        "dx *= 1 - fraction * fraction",
        "dx *= 1",
        "tests/ops/test_linear_cross_entropy.py -k 'Capped and reference'",
    ),
    Break(
        "columns that do not exist count as capped logits",
        "ops/cross_entropy/loss_and_gradient.py",
        "tl.where(exist, SOFTCAP * tanh(logits * (1 / SOFTCAP), EXACT), logits)",
        "SOFTCAP * tanh(logits * (1 / SOFTCAP), EXACT)",
        "tests/ops/test_linear_cross_entropy.py -k 'Capped and reference'",
    ),
    Break(
        "the classes past the last eight get no gradient",
        "ops/linear_cross_entropy/chunks.py",
        "return slices if whole == classes else [slice(whole, classes), *slices]",
        "return slices or [slice(whole, classes)]",
        "tests/ops/test_linear_cross_entropy.py",
    ),
    Break(
        "the gradient of a transposed weight is copied",
        "patch/gradients/projections.py",
        "return sum_of_products([(x.t(), dy)]).t()",
        "return sum_of_products([(dy.t(), x)])",
        "tests/patch/test_patch_joined.py -k transposed_weight",
    ),
    Break(
        "the residual gets the gradient of the normed branch",
        "patch/parts/residual.py",
        "return dx, dtotal if needed[1] else None",
        "return dx, dx if needed[1] else None",
        "tests/patch/test_patch_joined.py -k gradients_of_the_modules",
    ),
    Break(
        "the gradient of rotated q and k is rotated the same way",
        "patch/gradients/rotated_projections.py",
        "dq if dk is None else dk, cos, sin, False",
        "dq if dk is None else dk, cos, -sin, False",
        "tests/patch/test_patch_joined.py -k gradients_of_the_modules",
    ),
    Break(
        "a folded module keeps the trial's answer after a layer inside changed",
        "patch/folding/recognising.py",
        "if list(map(type, inside)) != self.classes or any(map(_has_own_behaviour, inside)):",
        "if False:",
        "tests/patch/folding/test_fold_pair_bias_modules.py -k condition_takes_part",
    ),
    Break(
        "samples of a batch read the pairs of another member",
        "patch/folding/pair_bias.py",
        "while own and own[-1] == 1:\n        own.pop()",
        "while own and own[0] == 1:\n        own.pop(0)",
        "tests/patch/folding/test_fold_pair_bias_modules.py -k 'stay_the_same and float32-torch'",
    ),
    Break(
        "the edges of a row lack the one of 1 + weight",
        "ops/device/norms/any_width_kernels.py",
        "weight_edges = plus_one(parameter_at(weight_ptr, weight_stride, edges, is_edge, COMPUTE), HAS_WEIGHT)",
        "weight_edges = parameter_at(weight_ptr, weight_stride, edges, is_edge, COMPUTE)",
        "tests/ops/test_norm_forms.py -k one_plus",
    ),
    Break(
        "every tile of a batch is of the first matrix",
        "ops/matmul/hopper/half.py",
        "return tile // per_matrix, row, column_tile * COLUMNS",
        "return tile // per_matrix * 0, row, column_tile * COLUMNS",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k half",
    ),
    Break(
        "the second block of a tile's columns is the first again",
        "ops/matmul/hopper/tiles.py",
        "further = column + COLUMNS\n                more_corner",
        "further = column\n                more_corner",
        "tests/ops/matmul/test_matmul_hopper_tiles.py -k 'interpreted and NN'",
    ),
    Break(
        "each part of the depth starts at the first step",
        "ops/matmul/hopper/tiles.py",
        "range(first_step, first_step + steps)",
        "range(0, steps)",
        "tests/ops/matmul/test_matmul_hopper_tiles.py -k 'interpreted and parts'",
    ),
    Break(
        "attention's backward on Hopper forgets what earlier programs added to dq",
        "ops/attention/hopper/backward_warps.py",
        "if before == 0:",
        "if before >= 0:",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k attention",
    ),
    Break(
        "attention on Hopper multiplies only the first tile of a head",
        "ops/attention/hopper/head_tiles.py",
        "    if FORM.REST:\n        products = ",
        "    if False:\n        products = ",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k attention",
    ),
    Break(
        "attention's backward on Hopper stores both tiles of dq at the first column",
        "ops/attention/hopper/backward_warps.py",
        "return DqPlace(0, part * first, rest if part else first)",
        "return DqPlace(0, 0, rest if part else first)",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k attention",
    ),
    Break(
        "attention's backward on Hopper masks the second half of a block as the first",
        "ops/attention/hopper/backward.py",
        "weights = only_seen(weights, query + block * BLOCK + reach",
        "weights = only_seen(weights, query + reach",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k attention",
    ),
    Break(
        "attention's backward on Hopper sees keys past the end",
        "ops/attention/hopper/backward.py",
        "ahead = gl.where(keys <= last_key, keys - reach, LARGE)",
        "ahead = keys - reach",
        "tests/ops/every_operator/test_hopper_kernels_interpreted.py -k past_the_end",
    ),
    Break(
        "a lost assignment is not looked for in a second visit",
        "toolchain/compiler/lost_assignments.py",
        "if after[name] != live[name] and",
        "if after[name] != after[name] and",
        "tests/toolchain/test_lost_assignments.py",
    ),
    Break(
        "lost assignments are looked for in the first visit of an outer loop",
        "toolchain/compiler/lost_assignments.py",
        "if depth == 1:",
        "if depth >= 1:",
        "tests/lab/inspect/test_assignments_lost_by_triton.py",
    ),
    Break(
        "Inductor is not told of an operator",
        "ops/runtime/kernels.py",
        "if operator not in graph.lowerings:",
        "if operator is None:",
        "tests/ops/runtime/test_compiled_calls.py -k inductor",
    ),
    Break(
        "prove leaves out gradients that are not finite",
        "training/proof/verdict.py",
        "if apart.isfinite().all() else math.nan",
        "if apart.numel() else math.nan",
        "tests/cli/test_prove_command.py -k spike",
    ),
    Break(
        "a command writes JSON without the version of its schema",
        "cli/terminal.py",
        'result = {"schema": FIRST_SCHEMA, **result}',
        "result = dict(result)",
        "tests/cli/test_json_schemas.py -k 'writes_what and ops'",
    ),
    Break(
        "a lazily negated argument has the look of a plain one",
        "ops/runtime/kernels.py",
        "if value.is_neg():",
        "if False:",
        "tests/ops/every_operator/test_torch_integration.py -k lazily_negated",
    ),
    Break(
        "a shuffle down takes the value of a lower lane",
        "workshop/cuda/warps.h",
        "TILESMITH_SHUFFLE(tilesmith_shfl_down, tilesmith::lane + by)",
        "TILESMITH_SHUFFLE(tilesmith_shfl_down, tilesmith::lane - by)",
        "tests/workshop/test_cuda_check.py -k with_shuffles",
    ),
    Break(
        "learn verify does not read the message of a wrong variant",
        "workshop/publishing/verify.py",
        "elif words not in verdict.message:",
        "elif False:",
        "tests/workshop/test_verify.py -k every_fault",
    ),
    Break(
        "float16 is computed in half precision",
        "ops/device/elementwise.py",
        "return tl.float64 if torch.float64 in dtypes else tl.float32",
        "return tl.float64 if torch.float64 in dtypes else tl.float16 if torch.float16 in dtypes else tl.float32",
        "tests/ops/every_operator/test_operators_are_right.py -k float16",
    ),
]


def copied_sources(folder: Path) -> None:
    """Copy what the tests need into the folder."""
    for name in ("src", "tests", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "ARCHITECTURE.md", "Makefile"):
        shutil.copy2(ROOT / name, folder / name)


def survives(planted: Break, folder: Path) -> bool:
    """Plant the break in the copy, run its tests, mend the copy; return whether the tests stayed green."""
    path = folder / "src" / "tilesmith" / planted.file
    right = path.read_text()
    if planted.text not in right:
        raise RuntimeError(f"{planted.name}: {planted.file} does not contain {planted.text!r}")
    path.write_text(right.replace(planted.text, planted.fault, 1))
    try:
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
        command = [sys.executable, "-m", "pytest", *options, *shlex.split(planted.tests)]
        environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    finally:
        path.write_text(right)
    if answer.returncode not in (0, 1):
        raise RuntimeError(f"{planted.name}: pytest ended with status {answer.returncode}\n{answer.stdout[-2000:]}")
    return answer.returncode == 0


def main(words: list[str]) -> int:
    chosen = [one for one in BREAKS if not words or any(word in one.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        copied_sources(Path(name))
        for planted in chosen:
            lives = survives(planted, Path(name))
            print(f"{'SURVIVES' if lives else 'seen':9} {planted.name} ({planted.tests})", flush=True)
            survivors += [planted.name] if lives else []
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} breaks seen")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
