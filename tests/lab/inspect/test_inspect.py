"""Figures and findings of kernels whose costs are known by hand."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
import triton
from reading import HOPPER, access, kinds, line_of, only
from triton.runtime.errors import AutotunerError

import tilesmith as ts
from tilesmith.lab.inspect import InspectError, inspect
from tilesmith.lab.inspect.model import Inspection


def test_three_passes_load_each_element_three_times() -> None:
    rows, columns = 8, 200
    x, w, y = torch.randn(rows, columns), torch.rand(columns), torch.empty(rows, columns)
    found = inspect(lambda: planted.three_pass_layer_norm[(rows,)](x, w, y, columns, 1e-5, BLOCK=64))
    (kernel,) = found.kernels
    assert {one.accesses_per_element for one in kernel.accesses if one.argument == "x_ptr"} == {3.0}
    assert {one.repeats for one in kernel.accesses if one.argument == "x_ptr"} == {1.0}
    by_name = {argument.name: argument for argument in kernel.arguments}
    assert by_name["x_ptr"].loads_per_element == by_name["x_ptr"].loads_per_element_in_program == 3.0
    assert (by_name["w_ptr"].loads_per_element, by_name["w_ptr"].loads_per_element_in_program) == (rows, 1.0)
    assert by_name["y_ptr"].stores_per_element == 1.0
    assert kernel.unique_bytes == 4 * (2 * rows * columns + columns)
    assert "3.0 times" in only(found, "redundant-load").message
    assert not found.has_errors
    ts.lab.assert_loads_per_element(found, "x_ptr", 3.0)
    ts.lab.assert_coalesced(found)
    with pytest.raises(AssertionError, match="three_pass_layer_norm: 3"):
        ts.lab.assert_loads_per_element(found, "x_ptr", 1.0)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (columns,), w), atol=1e-5, rtol=1e-5)


def test_tensor_passed_twice_counts_loads_of_both_arguments() -> None:
    a, c = torch.randn(32, 32), torch.empty(32, 32)
    found = inspect(lambda: planted.product[(1, 1)](a, a, c, 32, BLOCK=32, BLOCK_K=32))
    (kernel,) = found.kernels
    loads = {
        one.name: (one.loads_per_element, one.loads_per_element_in_program)
        for one in kernel.arguments
        if one.loaded_bytes
    }
    assert loads == {"a_ptr": (2.0, 2.0), "b_ptr": (2.0, 2.0)}
    assert kernel.unique_bytes == 4 * 2 * 32 * 32


def test_column_walk_uses_one_eighth_of_moved_bytes() -> None:
    x, y = torch.randn(128, 128), torch.empty(128, 128)
    found = inspect(lambda: planted.column_walk[(16,)](x, y, 128, 128, BLOCK=1024))
    load = access(found.kernels[0], "load", "x_ptr")
    assert (load.sectors_per_request, load.ideal_sectors_per_request, load.efficiency) == (32.0, 4.0, 0.125)
    assert access(found.kernels[0], "store", "y_ptr").efficiency == 1.0
    finding = only(found, "uncoalesced")
    assert finding.line == line_of(planted.column_walk, "x = tl.load")
    assert "12.5%" in finding.message
    assert finding.cost_bytes == (32 - 4) * 32 * 128 * 128 // 32
    with pytest.raises(AssertionError, match=r"12\.5%"):
        ts.lab.assert_coalesced(found)


def test_sector_that_a_threads_next_instruction_uses_up_is_used() -> None:
    x, y = torch.randn(4096), torch.empty(4096, dtype=torch.int8)
    found = inspect(lambda: planted.quantised[(4,)](x, y, 3.0, BLOCK=1024), targets=HOPPER)
    load = access(found.kernels[0], "load", "x_ptr")
    assert (load.sectors_per_request, load.ideal_sectors_per_request) == (32.0, 16.0), "a thread has 8 neighbours"
    assert load.efficiency == 1.0
    assert "uncoalesced" not in kinds(found)
    assert "moved bytes used      100%" in found.report()


def test_report_shows_the_same_finding_of_several_lines_once() -> None:
    x, y = torch.randn(16 * 1024), torch.empty(1024)
    found = inspect(lambda: planted.three_columns[(1,)](x, y, BLOCK=1024), targets=HOPPER)
    alike = [one for one in found.findings if one.kind == "uncoalesced"]
    first, *others = sorted(one.line or 0 for one in alike)
    assert len(others) == 2
    shown = found.report()
    assert shown.count("uncoalesced at") == found.html().count("; the same in lines") == 1
    assert f"; the same in lines {others[0]}, {others[1]} [{3 * alike[0].cost_bytes / 1000:.3g} kB" in shown
    assert f"at planted.py:{first}: " in shown


def test_a_tile_transpose_is_coalesced_both_ways_and_free_of_bank_conflicts() -> None:
    x, y = torch.randn(128, 128), torch.empty(128, 128)
    found = inspect(lambda: planted.tile_transpose[(4, 4)](x, y, 128, 128, BLOCK=32))
    (kernel,) = found.kernels
    assert {one.efficiency for one in kernel.accesses} == {1.0}
    shared = kernel.targets["cuda:90"].shared_accesses
    assert {one.kind for one in shared} == {"load", "store"}
    assert all(one.wavefronts == one.ideal_wavefronts for one in shared)
    assert kernel.targets["cuda:90"].shared_bytes == 32 * 32 * 4
    assert not kernel.findings
    torch.testing.assert_close(y, x.T)


def test_large_block_is_reported_as_spill() -> None:
    x, y = torch.randn(65536), torch.empty(65536)
    found = inspect(lambda: planted.one_large_block[(1,)](x, y, 65536, BLOCK=65536, num_warps=4), targets=HOPPER)
    finding = only(found, "spill")
    assert found.kernels[0].targets["cuda:90"].spill_bytes > 1000
    assert (finding.severity, finding.target) == ("warning", "cuda:90")


def test_odd_stride_is_reported_as_misaligned() -> None:
    def run(columns: int) -> Inspection:
        x, y = torch.randn(4, columns), torch.empty(4, columns)
        return inspect(lambda: planted.wide_rows[(4,)](x, y, columns, BLOCK=512), targets=HOPPER)

    odd, even = run(1001), run(1024)
    assert {one.vector_bytes for one in odd.kernels[0].accesses} == {4}
    assert {one.vector_bytes for one in even.kernels[0].accesses} == {16}
    finding = only(odd, "misaligned")  # one cause, two accesses
    assert "4 bytes" in finding.message
    assert "instead of 16" in finding.message
    assert "row_stride (1001)" in finding.message
    assert "misaligned" not in kinds(even)


def test_dots_are_counted_and_run_on_matrix_units() -> None:
    a, b, c = torch.randn(64, 128).half(), torch.randn(128, 64).half(), torch.empty(64, 64)
    found = inspect(lambda: planted.product[(1,)](a, b, c, 128, BLOCK=64, BLOCK_K=32))
    (kernel,) = found.kernels
    assert kernel.flops_by_kind["dot fp16"] == 2 * 64 * 64 * 128
    assert all(facts.tensor_cores for facts in kernel.targets.values())
    assert access(kernel, "load", "a_ptr").pipelined
    assert kernel.arithmetic_intensity == pytest.approx(kernel.flops / (2 * 64 * 128 * 2 + 64 * 64 * 4))


def test_compile_error_is_an_error_finding() -> None:
    y = torch.zeros(1)
    found = inspect(lambda: planted.type_changes[(1,)](y, 3))
    errors = [one for one in found.findings if one.kind == "compile-error"]
    assert {one.target: one.severity for one in errors} == {"cuda:90": "error", "hip:gfx942": "info"}
    assert y.item() == 4.5, "the interpreter accepts it"


def test_unmasked_block_at_the_tensor_end_is_reported() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.unmasked_double[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    assert {one.severity for one in found.findings if one.kind == "missing-mask"} == {"info"}
    masked = inspect(lambda: planted.copy[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    assert "missing-mask" not in kinds(masked)


@pytest.mark.parametrize("others_masked", [True, False])
def test_a_branch_for_even_sizes_misses_no_mask_where_the_other_branch_has_one(others_masked: bool) -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    kernel = planted.even_copy if others_masked else planted.even_double
    found = inspect(lambda: kernel[(4,)](x, y, 1024, BLOCK=256, EVEN=True), targets=HOPPER)
    assert ("missing-mask" in kinds(found)) is not others_masked


def test_unmasked_block_beyond_the_tensor_end_is_reported_once() -> None:
    x, y = torch.randn(1024), torch.empty(1000)
    found = inspect(lambda: planted.unmasked_double[(4,)](x, y, 1000, BLOCK=256), targets=HOPPER)
    (line,) = [one.line for one in found.findings if one.kind == "out-of-bounds"]
    assert line not in [one.line for one in found.findings if one.kind == "missing-mask"]


def test_a_positional_mask_is_a_mask() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.positional_masks[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    assert "missing-mask" not in kinds(found)


def test_an_inclusive_bound_is_no_stride() -> None:
    x, y = torch.randn(4096), torch.empty(4096)
    found = inspect(lambda: planted.inclusive_bound[(4,)](x, y, 4095, BLOCK=1024), targets=HOPPER)
    assert "uncoalesced" not in kinds(found)
    assert {one.severity for one in found.findings} == {"info"}
    assert "mask" in next(one.message for one in found.findings if one.kind == "misaligned")


def test_only_the_first_default_target_decides() -> None:
    y = torch.zeros(1)

    def run(**options: Any) -> Inspection:
        return inspect(lambda: planted.type_changes[(1,)](y, 3), **options)

    assert {one.target for one in run(device="b200").findings if one.severity == "error"} == {"cuda:100"}
    asked = run(targets=("cuda:90", "hip:gfx942"))
    assert {one.target for one in asked.findings if one.severity == "error"} == {"cuda:90", "hip:gfx942"}


def test_masked_lanes_are_counted() -> None:
    x, y = torch.randn(300), torch.empty(300)
    found = inspect(lambda: planted.copy[(1,)](x, y, 300, BLOCK=1024), targets=HOPPER)
    assert access(found.kernels[0], "load", "x_ptr").masked_fraction == pytest.approx(1 - 300 / 1024)
    assert "masked-waste" in kinds(found)


@pytest.mark.parametrize(("n", "found_in"), [(4096, []), (2048 + 100, ["load"])])
def test_mask_that_follows_values_is_no_block_past_the_data(n: int, found_in: list[str]) -> None:
    x, y = torch.randn(4096), torch.full((64,), -torch.inf)
    found = inspect(lambda: planted.largest_of_each_remainder[(2,)](x, y, n, BLOCK=2048), targets=HOPPER)
    atomic = access(found.kernels[0], "atomic", "y_ptr")
    assert atomic.masked_fraction >= 0.5  # tl.atomic_max of floats is two atomics
    wasteful = [one for one in found.findings if one.kind == "masked-waste"]
    assert [kind for one in wasteful for kind in ("load", "atomic") if f"this {kind} " in one.message] == found_in


def test_sampled_programs_scale_to_a_large_grid() -> None:
    x, y = torch.randn(4096 * 256), torch.empty(4096 * 256)
    found = inspect(lambda: planted.copy[(4096,)](x, y, x.numel(), BLOCK=256), targets=HOPPER, programs=20)
    (kernel,) = found.kernels
    assert (kernel.programs, kernel.programs_traced) == (4096, 20)
    assert "20 of 4,096 programs" in kernel.sampled
    assert access(kernel, "load", "x_ptr").bytes == access(kernel, "load", "x_ptr").unique_bytes == x.nbytes
    assert kernel.program_facts[0].program == (0, 0, 0)
    assert kernel.program_facts[-1].program == (4095, 0, 0)
    assert torch.equal(y, x), "programs that were not traced have run all the same"


def test_shown_programs_have_tiles_and_requests() -> None:
    x, y = torch.randn(64, 96), torch.empty(96, 64)
    found = inspect(lambda: planted.tile_transpose[(2, 3)](x, y, 64, 96, BLOCK=32), targets=HOPPER)
    (kernel,) = found.kernels
    by_program = {facts.program: facts for facts in kernel.program_facts}
    assert len(by_program) == 6
    (tile,) = by_program[1, 2, 0].tiles
    assert (tile.argument, tile.box) == ("y_ptr", ((64, 96), (32, 64)))
    shown = by_program[0, 0, 0]
    load = shown.accesses[0]
    assert kernel.accesses[load.access].argument == "x_ptr"
    assert load.runs[:2] == ((0, 32), (96, 32))
    first = load.requests[0]
    assert (first.warp, first.sectors, first.ideal_sectors) == (0, 16, 16)
    assert first.lanes[0] == (0, (0, 1, 2, 3))
    assert [operation.kind for operation in shown.operations] == ["load", "store"]
    assert shown.operations[1].inputs == (0,)


def test_operations_list_their_inputs() -> None:
    x, w, y = torch.randn(2, 64), torch.rand(64), torch.empty(2, 64)
    found = inspect(lambda: planted.three_pass_layer_norm[(2,)](x, w, y, 64, 1e-5, BLOCK=64), targets=HOPPER)
    operations = found.kernels[0].program_facts[0].operations
    names = [operation.name for operation in operations]
    assert names.count("reduce") == 2
    store = operations[-1]
    assert (store.kind, store.argument) == ("store", "y_ptr")
    before, reached = list(store.inputs), set()
    while before:
        number = before.pop()
        reached.add(number)
        before += [one for one in operations[number].inputs if one not in reached]
    assert {operations[one].argument for one in reached if operations[one].kind == "load"} == {"x_ptr", "w_ptr"}


def test_line_shares_sum_to_one() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.unmasked_double[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    (line,) = [one for one in found.kernels[0].lines if one.bytes]
    assert (line.bytes, line.share, line.flops) == (2 * 4096, 1.0, 1024)
    assert line.code.startswith("tl.store(")


def test_repeated_launches_are_counted_not_traced_again() -> None:
    x, y = torch.randn(1024), torch.empty(1024)

    def program() -> None:
        for _ in range(5):
            planted.copy[(4,)](x, y, 1024, BLOCK=256)
        planted.copy[(2,)](x, y, 512, BLOCK=256)

    found = inspect(program, targets=HOPPER)
    assert [(kernel.grid, kernel.launches) for kernel in found.kernels] == [((4, 1, 1), 5), ((2, 1, 1), 1)]


def test_predictions_follow_the_datasheet() -> None:
    x, y = torch.randn(1 << 20), torch.empty(1 << 20)
    found = inspect(
        lambda: planted.copy[(1024,)](x, y, 1 << 20, BLOCK=1024), targets=("cuda:90", "cuda:100"), device="h100"
    )
    facts = found.kernels[0].targets["cuda:90"]
    assert facts.predicted_floor_us == pytest.approx(2 * x.nbytes / 3.35e6)
    assert found.kernels[0].bound == "memory"
    assert facts.waves == pytest.approx(1024 / (132 * 16))
    assert found.kernels[0].targets["cuda:100"].predicted_floor_us == pytest.approx(2 * x.nbytes / 8e6)


def test_texts_are_given_by_source_line() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.copy[(4,)](x, y, 1024, BLOCK=256), texts=True)
    line = line_of(planted.copy, "tl.store")
    for target, names in (("cuda:90", ("ttir", "ttgir", "ptx", "sass")), ("hip:gfx942", ("ttgir", "amdgcn"))):
        for name in names:
            on_line = [text for number, text in found.kernels[0].targets[target].assembly[name] if number == line]
            assert on_line, f"{name} for {target} names no line"
    sass = [text for number, text in found.kernels[0].targets["cuda:90"].assembly["sass"] if number == line]
    assert any("STG" in text for text in sass)


def test_notebook_html_is_escaped() -> None:
    x, y = torch.randn(1024), torch.empty(1024)
    found = inspect(lambda: planted.copy[(4,)](x, y, 1024, BLOCK=256), targets=HOPPER)
    assert found._repr_html_().startswith("<iframe")
    assert "<lambda>" not in found._repr_html_()


def configurations(x: torch.Tensor, y: torch.Tensor, config: str | None) -> Inspection:
    # The grid depends on the configuration, so it shows which one was used.
    grid = lambda meta: (x.numel() // meta["BLOCK"],)  # noqa: E731  # the usual way to write a grid
    return inspect(lambda: planted.tuned_copy[grid](x, y, x.numel()), targets=HOPPER, config=config)


def test_autotuner_uses_the_first_configuration_that_fits() -> None:
    x, y = torch.randn(1 << 20), torch.empty(1 << 20)
    found = configurations(x, y, None)
    assert found.kernels[0].constants["BLOCK"] == 4096, "a block of 3000 does not compile"
    assert planted.tuned_copy.best_config.kwargs == {"BLOCK": 4096}


@pytest.mark.parametrize("config", ["2", "BLOCK=1024", "num_warps=8,BLOCK=1024"])
def test_config_option_selects_a_configuration(config: str) -> None:
    x, y = torch.randn(1 << 14), torch.empty(1 << 14)
    (kernel,) = configurations(x, y, config).kernels
    assert kernel.constants["BLOCK"] == 1024
    assert kernel.targets["cuda:90"].num_warps == 8


@pytest.mark.parametrize("config", ["7", "BLOCK=7", "nonsense"])
def test_unknown_configuration_raises(config: str) -> None:
    x, y = torch.randn(1 << 14), torch.empty(1 << 14)
    with pytest.raises(InspectError, match="--config"):
        configurations(x, y, config)


def test_configuration_of_a_kernel_without_autotuner_raises() -> None:
    x, y = torch.randn(300), torch.empty(300)
    with pytest.raises(InspectError, match="config '3': no kernel of the program has an autotuner"):
        inspect(lambda: planted.copy[(1,)](x, y, 300, BLOCK=512), targets=HOPPER, config="3")


def only_large_ones(configs: list[Any], arguments: dict[str, Any], **options: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["BLOCK"] > arguments["n_elements"]]


def only_what_nothing_has(configs: list[Any], arguments: dict[str, Any], **options: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["SIZE"] > arguments["n_elements"]]


def pruned(by: Callable[..., list[Any]]) -> Inspection:
    tuned = triton.autotune(planted.tuned_copy.configs[1:], [], prune_configs_by={"early_config_prune": by})(
        planted.copy
    )
    x, y = torch.randn(2048), torch.empty(2048)
    return inspect(lambda: tuned[1,](x, y, 2048), targets=HOPPER)


def test_early_config_prune_is_applied() -> None:
    assert pruned(only_large_ones).kernels[0].constants["BLOCK"] == 4096
    assert pruned(lambda configs, arguments, **options: configs[1:]).kernels[0].constants["BLOCK"] == 1024


def test_exception_in_pruning_is_raised_with_name_and_line() -> None:
    with pytest.raises(KeyError, match="SIZE") as raised:
        pruned(only_what_nothing_has)
    places = {entry.name: entry.lineno for entry in raised.traceback}
    assert places["only_what_nothing_has"] == only_what_nothing_has.__code__.co_firstlineno


def test_pruning_all_configurations_raises_like_triton() -> None:
    with pytest.raises(AutotunerError, match="No valid autotuner configs after pruning"):
        pruned(lambda configs, arguments, **options: [])


def test_renamed_file_is_matched_with_its_binary(tmp_path: Path) -> None:
    # Triton's cache returns the binary that was compiled under the old name.
    source = Path(planted.__file__).read_text()
    for name in ("before.py", "after.py"):
        (tmp_path / name).write_text(source)
        module = runpy.run_path(str(tmp_path / name))
        x, y = torch.randn(1024), torch.empty(1024)
        found = inspect(partial(module["copy"][4,], x, y, 1024, BLOCK=256), texts=True)
        assert {access.efficiency for access in found.kernels[0].accesses} == {1.0}
        for facts in found.kernels[0].targets.values():
            assert all(
                any(line for line, _ in text) for text_name, text in facts.assembly.items() if text_name != "llir"
            )
