# mypy: disable-error-code="no-untyped-call"
# torch's events and streams have no types.
"""Tracked tensors and `torch.cuda` on a machine without a GPU."""

from __future__ import annotations

import io

import pytest
import torch

from tilesmith.hardware.devices import device
from tilesmith.lab.inspect.running.gpu_stand_in import gpu_stand_in
from tilesmith.lab.inspect.running.tensor_tracker import TensorTracker
from tilesmith.toolchain.benchmarks import CublasLt

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to ask instead")


def _gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((x * x).sum(), x)[0]


@pytest.fixture
def pretended():  # type: ignore[no-untyped-def]  # a generator of nothing
    with gpu_stand_in(device("h200")), TensorTracker(lambda tensors: None, pretend_gpu=True).watching():
        yield


@pytest.mark.usefixtures("pretended")
class TestWithoutGpu:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(3, device="cuda"),
            lambda: torch.ones(3, device=torch.device("cuda", 0)),
            lambda: torch.ones(3, device=0),
            lambda: torch.ones(3).cuda(),
            lambda: torch.ones(3).to("cuda:0"),
            lambda: torch.ones(3).to(torch.device("cuda"), torch.float16),
            lambda: torch.ones(3).to(device="cuda", non_blocking=True),
            lambda: torch.ones(3, device="cuda") + 1,
            lambda: torch.ones(3, device="cuda")[1:],
            lambda: torch.empty_like(torch.ones(3, device="cuda")),
            lambda: torch.nn.Parameter(torch.ones(3, device="cuda")),
            lambda: torch.nn.Linear(2, 2).cuda().weight,
            lambda: _gradient(torch.ones(3, device="cuda", requires_grad=True)),
            lambda: torch.nn.Linear(2, 2, device="cuda").weight,
            lambda: torch.ones(3).to(torch.ones(1, device="cuda").device),
            lambda: torch.randn(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)),
        ],
    )
    def test_tensor_created_on_the_gpu_reports_cuda(self, make) -> None:  # type: ignore[no-untyped-def]
        tensor = make()
        assert tensor.is_cuda
        assert tensor.device == torch.device("cuda", 0)
        assert tensor.get_device() == 0

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(3),
            lambda: torch.ones(3, device="cuda").cpu(),
            lambda: torch.ones(3, device="cuda").to("cpu"),
            lambda: torch.ones(3, pin_memory=True),
        ],
    )
    def test_tensor_on_the_host_reports_cpu(self, make) -> None:  # type: ignore[no-untyped-def]
        assert not make().is_cuda
        assert make().device == torch.device("cpu")

    def test_fresh_integers_are_zero_so_that_a_lock_opens(self) -> None:
        for length in range(50, 70):
            torch.full((length,), 1, dtype=torch.int32)  # gone at once: its memory is the next to be used
            assert not torch.empty(length, dtype=torch.int32, device="cuda").any()

    def test_move_between_host_and_gpu_copies(self) -> None:
        here = torch.ones(3)
        there = here.cuda()
        here.zero_()
        assert there.sum() == 3
        assert there.cuda() is there

    def test_backward_function_sees_cuda_tensors(self) -> None:
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(context, x):  # type: ignore[no-untyped-def]
                return x * 2

            @staticmethod
            def backward(context, gradient):  # type: ignore[no-untyped-def]
                assert gradient.is_cuda
                return gradient * torch.full((3,), 2.0, device="cuda")

        x = torch.ones(3, device="cuda", requires_grad=True)
        Twice.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.is_cuda
        assert x.grad.tolist() == [2, 2, 2]

    def test_device_queries_follow_the_datasheet(self) -> None:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == "NVIDIA H200"
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 132
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) != start.elapsed_time(end), "no time was measured, so it is not a number"
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            torch.cuda.manual_seed_all(3)

    @pytest.mark.parametrize("name", torch.accelerator.__all__)
    def test_torch_accelerator_needs_no_driver(self, name: str) -> None:
        argument = {"set_stream": torch.Stream, "set_device_index": int, "set_device_idx": int, "device_index": int}
        getattr(torch.accelerator, name)(*[make() for key, make in argument.items() if key == name])

    def test_current_accelerator_is_cuda(self) -> None:
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 1
        there = torch.ones(3, device=torch.accelerator.current_accelerator())
        assert there.is_cuda
        assert torch.accelerator.current_stream().device == there.device
        assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        end.record()
        with torch.accelerator.device_index(0):
            torch.accelerator.synchronize()
        assert start.elapsed_time(end) != start.elapsed_time(end)

    def test_default_device_makes_tensors_on_the_gpu(self) -> None:
        host = torch.ones(2)
        torch.set_default_device("cuda")
        try:
            made = [torch.ones(2), torch.arange(3), torch.nn.Linear(2, 2).weight, torch.zeros_like(host)]
        finally:
            torch.set_default_device(None)
        assert [one.device.type for one in made] == ["cuda"] * 3 + ["cpu"]
        assert torch.ones(2).device.type == "cpu"

    @pytest.mark.parametrize("location", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}])
    def test_file_is_loaded_to_the_gpu(self, location) -> None:  # type: ignore[no-untyped-def]
        file = io.BytesIO()
        torch.save({"weight": torch.arange(3.0)}, file)
        file.seek(0)
        loaded = torch.load(file, map_location=location)["weight"]
        assert loaded.is_cuda
        assert loaded.tolist() == [0, 1, 2]

    def test_state_of_the_generator_is_a_seed_and_an_offset(self) -> None:
        generator = torch.cuda.default_generators[0]
        torch.cuda.manual_seed(5)
        start = generator.get_state()
        numbers = torch.rand(3, device="cuda").tolist()
        seed, offset = generator.get_state().view(torch.int64)
        assert (seed, offset) == (5, 4)
        generator.set_state(start)
        assert torch.rand(3, device="cuda").tolist() == numbers

    @pytest.mark.parametrize(
        "call",
        [
            lambda: torch.cuda.nvtx.range_push("one"),
            lambda: torch.cuda.nvtx.range_pop(),
            lambda: torch.cuda.nvtx.mark("one"),
            lambda: torch.autograd.profiler.emit_nvtx().__enter__(),
            lambda: torch.cuda.cudart().cudaProfilerStart(),
            lambda: torch.cuda.profiler.start(),
            lambda: torch.cuda.memory._record_memory_history(),
            lambda: torch.cuda.memory_stats()["allocated_bytes.all.peak"],
            lambda: torch.cuda.random.initial_seed(),
            lambda: torch.cuda._sleep(1000),
            lambda: torch.cuda.set_per_process_memory_fraction(0.5),
            lambda: torch.cuda.CUDAGraph().pool(),
            lambda: torch.cuda.graph_pool_handle(),
            lambda: torch.cuda.ExternalStream(0),
            lambda: torch.ones(3, device="cuda").record_stream(torch.cuda.Stream()),
        ],
    )
    def test_calls_that_only_a_gpu_answers_do_nothing(self, call) -> None:  # type: ignore[no-untyped-def]
        call()

    def test_clock_and_bus_of_the_memory_give_its_bandwidth(self) -> None:
        found = torch.cuda.get_device_properties(0)
        assert 2 * found.memory_clock_rate * 1e3 * found.memory_bus_width / 8 == pytest.approx(4.8e12)

    def test_device_context_is_a_class(self) -> None:
        assert isinstance(torch.cuda.device(0), torch.cuda.device)

    def test_profile_of_cuda_needs_no_cuda(self, capfd) -> None:  # type: ignore[no-untyped-def]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.ones(3, device="cuda")
        assert "Failed" not in capfd.readouterr().err

    def test_capturable_optimiser_steps(self) -> None:
        weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
        weight.sum().backward()
        torch.optim.AdamW([weight], lr=0.5).step()
        assert (weight < 1).all()

    @pytest.mark.parametrize("workers", [0, 1])
    def test_pinned_data_loader_works(self, workers: int) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(4.0))
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=workers, pin_memory=True)
        assert [batch.to("cuda", non_blocking=True).tolist() for (batch,) in loader] == [[0, 1], [2, 3]]


def test_torch_is_restored_after_watching() -> None:
    modules = torch, torch.Tensor, torch.cuda, torch.accelerator
    before = [dict(vars(module)) for module in modules]
    with gpu_stand_in(device("h200")), TensorTracker(lambda tensors: None, pretend_gpu=True):
        torch.ones(3, device="cuda")
    assert [dict(vars(module)) for module in modules] == before
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(3, device="cuda")


def test_before_use_receives_the_tensors_of_a_call() -> None:
    used: list[object] = []
    watch = TensorTracker(lambda tensors: used.append(tensors), pretend_gpu=False)
    x = torch.ones(4)
    with watch:
        x.shape, x.stride(), x.data_ptr(), x.view(2, 2), x.numel()
        assert used == []
        x.sum()
    assert len(used) == 1


def test_product_of_cublas_waits_until_its_result_is_read() -> None:
    used: list[object] = []
    deferred: list[tuple[object, ...]] = []
    tracker = TensorTracker(
        lambda tensors: used.extend(tensors or ()), pretend_gpu=True, defer=lambda *one: deferred.append(one)
    )
    with gpu_stand_in(device("h200")), tracker.watching():
        a, b = (torch.randn(4, 8, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        c = torch.zeros(4, 4, device="cuda", dtype=torch.float16)
        used.clear()
        CublasLt(None).matmul(a, b, c)
    assert not used
    assert len(deferred) == 1
    assert not c.any()
    write, operands, output = deferred[0]
    write(output, *operands)  # type: ignore[operator, misc]
    torch.testing.assert_close(c, (a.float() @ b.float().T).half())


def test_calls_that_read_only_a_shape_ask_for_no_results() -> None:
    used: list[object] = []
    x = torch.ones(4)
    with TensorTracker(lambda tensors: used.append(tensors), pretend_gpu=False):
        (
            torch.randn_like(x),
            torch.zeros_like(x),
            torch.empty_like(x),
            x.new_zeros(3),
            x.new_full((2,), 1.0),
            x[1:, None],
        )
    assert used == []


@pytest.mark.parametrize(
    "index", [torch.tensor([0, 2]), [0, 2], torch.tensor([True, False, True, False]), (slice(2), [1])]
)
def test_indexing_with_a_tensor_or_a_list_reads_the_results(index: object) -> None:
    used: list[object] = []
    x = torch.ones(4, 4)
    with TensorTracker(lambda tensors: used.append(tensors), pretend_gpu=False):
        x[index]  # type: ignore[index]
    assert len(used) == 1


def test_indexing_reports_only_selected_elements_that_nobody_wrote() -> None:
    found: list[str] = []
    with TensorTracker(lambda tensors: None, False, lambda tensor, elements, call: found.append(call)) as watch:
        x = torch.empty(4)
        written = watch.written_bytes(x)
        assert written is not None
        written[:8] = True
        x[torch.tensor([0, 1])]
        x.index_select(0, torch.tensor([1]))
        assert found == []
        x[torch.tensor([1, 2])]
    assert found == ["__getitem__"]
