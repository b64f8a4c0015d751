"""The table of known GPUs."""

import pytest

from tilesmith.hardware.devices import Device, device, devices, for_target, match

EVERY_DEVICE = pytest.mark.parametrize("known", devices(), ids=lambda known: known.name)


def test_finds_device_in_any_case() -> None:
    assert device("H200") is device("h200")
    assert device("h200").memory_tb_per_s == 4.8
    assert device("h200").architecture is for_target("cuda:90")


def test_unknown_device_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"device: unknown device 'h2000'; known are h200, h100, a100"):
        device("h2000")


def test_unknown_target_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"target: the limits of 'cuda:35' are not known; known are cuda:80"):
        for_target("cuda:35")


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("amd instinct mi250x", "mi250x"),
    ],
)
def test_matches_the_name_that_pytorch_reports(reported: str, name: str) -> None:
    assert match(reported) is device(name)


@pytest.mark.parametrize(
    "reported",
    ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce GTX 1080", ""],
)
def test_similar_name_does_not_match_a_device(reported: str) -> None:
    assert match(reported) is None


def test_no_two_devices_share_a_reported_name() -> None:
    names = [name.lower() for known in devices() for name in known.reported_as]
    assert len(names) == len(set(names))


@EVERY_DEVICE
def test_every_figure_has_a_source(known: Device) -> None:
    assert known.source
    assert known.architecture.source


@EVERY_DEVICE
def test_rates_are_dense_and_double_as_the_type_narrows(known: Device) -> None:
    rates = known.tflop_per_s
    assert rates["bf16"] == rates["fp16"]
    if "fp32 matrix" in rates:
        assert rates["fp32 matrix"] == pytest.approx(2 * rates["fp32"], rel=0.02)
    if "tf32" in rates:
        assert rates["bf16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
    if "fp8" in rates:
        assert rates["fp8"] == pytest.approx(2 * rates["fp16"], rel=0.02)


@EVERY_DEVICE
def test_vector_rate_follows_from_lanes_and_a_plausible_clock(known: Device) -> None:
    # fp32 operations per clock and multiprocessor: lanes, times two for multiply and add, times two where AMD's CDNA 3
    # issues two at once. A figure that is off by a factor of two gives an impossible clock.
    per_clock = {"cuda:80": 128, "hip:gfx90a": 128, "hip:gfx942": 256}.get(known.architecture.target, 256)
    gigahertz = known.tflop_per_s["fp32"] * 1e3 / (known.multiprocessors * per_clock)
    assert 1.2 < gigahertz < 2.7


@EVERY_DEVICE
def test_bandwidth_is_in_terabytes(known: Device) -> None:
    assert 0.5 < known.memory_tb_per_s < 10
