"""Specs: what a user's file may look like, and what is said about one that cannot be used."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tilesmith.spec import CONTIGUOUS, LAYOUTS, Case, Layout, Spec, SpecError, Work, called, described, load_file

MINIMAL = """
import torch
from tilesmith import Case, Spec

SPEC = Spec(
    name="double", op=lambda x: x * 2, reference=lambda x: x + x, cases=[Case("five", elements=5)],
    make_inputs=lambda case, dtype, device: {"x": torch.ones(case.elements, dtype=dtype, device=device)},
)
"""


def spec_of(make_inputs: Callable[..., Any], op: Callable[..., Any] = torch.clone) -> Spec:
    return Spec(name="s", op=op, reference=op, cases=[Case("a", rows=4, cols=6)], make_inputs=make_inputs)


def written(folder: Path, text: str, name: str = "kernel.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


class TestCase:
    def test_reads_its_sizes_back(self) -> None:
        case = Case("tiny", rows=4, cols=200)
        assert (case.name, case.rows, case.cols) == ("tiny", 4, 200)
        assert repr(case) == "Case('tiny', rows=4, cols=200)"

    def test_names_the_size_it_does_not_have(self) -> None:
        with pytest.raises(AttributeError, match="case 'tiny' has no size 'columns'"):
            _ = Case("tiny", rows=4).columns

    def test_takes_other_sizes_but_no_new_ones(self) -> None:
        assert Case("tiny", rows=4, cols=200).with_sizes(rows=5).sizes == {"rows": 5, "cols": 200}
        with pytest.raises(SpecError, match="case 'tiny' has sizes rows, not columns"):
            Case("tiny", rows=4).with_sizes(columns=3)


def test_work_adds_up() -> None:
    assert Work(bytes=1, flops=2) + Work(bytes=10, flops=20) == Work(bytes=11, flops=22)


class TestLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
    @pytest.mark.parametrize("shape", [(), (5,), (4, 6), (2, 3, 4), (0, 3)], ids=str)
    def test_keep_shape_and_values(self, layout: Layout, shape: tuple[int, ...]) -> None:
        tensor = torch.randn(shape)
        arranged = layout(tensor)
        assert arranged.shape == tensor.shape
        repeats_the_first = layout.name == "expanded" and tensor.ndim > 1 and len(tensor)
        assert torch.equal(arranged, tensor[:1].expand(shape) if repeats_the_first else tensor)

    def test_are_what_their_names_say(self) -> None:
        strides = {layout.name: layout(torch.randn(4, 6)).stride() for layout in LAYOUTS}
        assert strides == {
            "contiguous": (6, 1), "row-strided": (9, 1), "transposed": (1, 4), "offset": (6, 1), "expanded": (0, 1),
        }  # fmt: skip
        offset = next(layout for layout in LAYOUTS if layout.name == "offset")
        assert offset(torch.randn(4, 6)).storage_offset() == 1


class TestInputs:
    def test_laid_out_by_make_inputs_where_it_asks_for_the_layout(self) -> None:
        asked = []

        def make_inputs(case: Case, dtype: torch.dtype, device: str, layout: Layout) -> dict[str, Any]:
            asked.append(layout.name)
            return {"x": torch.ones(case.rows, case.cols)}

        inputs = spec_of(make_inputs).inputs(Case("a", rows=4, cols=6), torch.float32, "cpu", LAYOUTS[2])
        assert asked == ["transposed"]
        assert inputs["x"].is_contiguous()

    def test_laid_out_for_a_make_inputs_with_three_parameters(self) -> None:
        spec = spec_of(
            lambda case, dtype, device: {"x": torch.ones(case.rows, case.cols), "indices": torch.arange(3), "p": 0.5}
        )
        inputs = spec.inputs(spec.cases[0], torch.float32, "cpu", LAYOUTS[2])
        assert inputs["x"].stride() == (1, 4)
        assert inputs["indices"].is_contiguous()
        assert inputs["p"] == 0.5

    def test_in_order_get_the_names_of_the_operators_parameters(self) -> None:
        spec = spec_of(lambda case, dtype, device: (torch.ones(1), 0.5), op=lambda x, p, q=1: x)
        assert list(spec.inputs(spec.cases[0], torch.float32, "cpu")) == ["x", "p"]

    def test_single_tensor_is_the_first_argument(self) -> None:
        spec = spec_of(lambda case, dtype, device: torch.ones(3), op=lambda x: x)
        assert spec.inputs(spec.cases[0], torch.float32, "cpu")["x"].shape == (3,)

    @pytest.mark.parametrize(
        ("make_inputs", "op", "message"),
        [
            (lambda case, dtype, device: (1, 2), lambda x: x, "s: make_inputs gives 2 values, but op takes 1"),
            (lambda case, dtype, device: None, lambda x: x, "s: make_inputs returns nothing"),
            (lambda case, dtype: {}, lambda x: x, "s: make_inputs fails for Case.*: TypeError: .*takes 2 positional"),
            (lambda case, dtype, device: case.columns, lambda x: x, r"no size 'columns' \(test_spec.py:\d+\)"),
            (lambda case, dtype, device: (1, 2), torch.add, "s: op does not tell its parameters"),
        ],
        ids=["too many", "nothing", "too few parameters", "raises", "no signature"],
    )
    def test_that_cannot_be_made(self, make_inputs: Callable[..., Any], op: Callable[..., Any], message: str) -> None:
        spec = spec_of(make_inputs, op)
        with pytest.raises(SpecError, match=message):
            spec.inputs(spec.cases[0], torch.float32, "cpu", CONTIGUOUS)


class TestCalling:
    inputs = {"x": torch.tensor([-1.0, 2.0]), "slope": 0.5}  # noqa: RUF012  # nobody changes it

    def test_by_name_whatever_the_order(self) -> None:
        def leaky(*, slope: float, x: Tensor) -> Tensor:
            return torch.where(x > 0, x, x * slope)

        assert called(leaky, self.inputs).tolist() == [-0.5, 2.0]

    def test_by_name_through_a_wrapper(self) -> None:
        assert called(lambda **inputs: inputs["slope"], self.inputs) == 0.5

    @pytest.mark.parametrize("function", [F.leaky_relu, lambda a, b: F.leaky_relu(a, b)], ids=["torch", "own"])
    def test_in_order_where_the_names_differ(self, function: Callable[..., Any]) -> None:
        assert called(function, self.inputs).tolist() == [-0.5, 2.0]

    def test_in_order_where_names_are_unknown(self) -> None:
        assert called(torch.mul, self.inputs).tolist() == [-0.5, 1.0]


class TestSpec:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"cases": []}, "SPEC 's' has no cases: give it at least one"),
            ({"cases": [("tiny", 4)]}, r"SPEC 's': cases holds \('tiny', 4\), which is not a Case"),
            ({"cases": [Case("a"), Case("a")]}, "SPEC 's' has two cases of one name: a, a"),
            ({"dtypes": []}, "SPEC 's' has no dtypes"),
            ({"dtypes": ["float32"]}, "SPEC 's': dtypes holds 'float32', which is not a dtype"),
            ({"layouts": ()}, "SPEC 's' has no layouts"),
            ({"op": None}, "SPEC 's': op is None, not a function"),
            ({"make_inputs": {}}, "SPEC 's': make_inputs is {}, not a function"),
        ],
        ids=str,
    )
    def test_is_refused_with_the_field_that_is_wrong(self, fields: dict[str, Any], message: str) -> None:
        right = {"name": "s", "op": abs, "reference": abs, "cases": [Case("a")], "make_inputs": dict}
        with pytest.raises(SpecError, match=message):
            Spec(**{**right, **fields})

    def test_finds_its_cases_by_name(self) -> None:
        spec = spec_of(dict)
        assert spec.case("a") is spec.cases[0]
        with pytest.raises(SpecError, match="s has no case 'b'; it has a"):
            spec.case("b")


class TestFile:
    def test_with_a_spec_is_loaded(self, tmp_path: Path) -> None:
        assert load_file(written(tmp_path, MINIMAL)).name == "double"

    def test_may_import_its_neighbours(self, tmp_path: Path) -> None:
        written(tmp_path, "SIZE = 5\n", "neighbour_of_kernel.py")
        text = "from neighbour_of_kernel import SIZE\n" + MINIMAL.replace("elements=5", "elements=SIZE")
        assert load_file(written(tmp_path, text)).cases[0].elements == 5

    def test_called_torch_does_not_stand_for_torch(self, tmp_path: Path) -> None:
        assert load_file(written(tmp_path, MINIMAL, "torch.py")).name == "double"
        assert sys.modules["torch"] is torch

    def test_of_the_same_name_elsewhere_is_another_module(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        one = load_file(written(tmp_path, MINIMAL))
        other = load_file(written(tmp_path / "other", MINIMAL))
        assert sys.modules[one.op.__module__] is not sys.modules[other.op.__module__]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\n", "{path}: defines no SPEC; see `tilesmith.Spec` for what it holds; {inspect}"),
            ("SPEC = {'name': 'mine'}\n", "{path}: SPEC is a dict, not a tilesmith.Spec"),
            ("SPEC = None\n", "{path}: SPEC is a NoneType, not a tilesmith.Spec"),
            ("x = 1\ndef broken(:\n", "{path}:2: syntax error: invalid syntax"),
            ("import not_there_at_all\nSPEC = None\n",
             "{path}: fails when imported: ModuleNotFoundError: No module named 'not_there_at_all' (kernel.py:1)"),
            ("raise ValueError('one\\ntwo')\n",
             "{path}: fails when imported: ValueError: one two (kernel.py:1); it defines no SPEC: {inspect}"),
            ("raise SystemExit(3)  # before SPEC\n", "{path}: fails when imported: SystemExit: 3 (kernel.py:1)"),
            ("from tilesmith import Spec\nSPEC = Spec(name='mine')\n",
             "{path}: fails when imported: TypeError: Spec.__init__() missing 4 required keyword-only arguments: "
             "'op', 'reference', 'cases', and 'make_inputs' (kernel.py:2)"),
            (MINIMAL.replace('[Case("five", elements=5)]', "[]"),
             "{path}: SPEC 'double' has no cases: give it at least one"),
        ],
        ids=["no SPEC", "a dict", "None", "syntax", "import", "raises", "exits", "incomplete", "no cases"],
    )  # fmt: skip
    def test_that_cannot_be_used_gets_one_line(self, tmp_path: Path, text: str, message: str) -> None:
        path = written(tmp_path, text)
        with pytest.raises(SpecError) as raised:
            load_file(path)
        hint = "for a script that launches kernels, use `tilesmith inspect`"
        assert str(raised.value) == message.replace("{path}", str(path)).replace("{inspect}", hint)

    def test_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"nothing.py: no such file"):
            load_file(tmp_path / "nothing.py")
        with pytest.raises(SpecError, match="is a folder, not a file"):
            load_file(tmp_path)

    def test_with_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "kernel.py").write_bytes(b"x = '\xff\xfe'\n")
        with pytest.raises(SpecError, match=r"kernel.py(:\d+)?: syntax error: ") as raised:
            load_file(tmp_path / "kernel.py")
        assert "\n" not in str(raised.value)

    def test_that_fails_leaves_no_half_made_module(self, tmp_path: Path) -> None:
        before = set(sys.modules)
        with pytest.raises(SpecError):
            load_file(written(tmp_path, "raise ValueError"))
        assert {name for name in set(sys.modules) - before if name.startswith("tilesmith_file")} == set()

    def test_that_is_interrupted_is_not_blamed(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            load_file(written(tmp_path, "raise KeyboardInterrupt\n"))


class TestDescription:
    def test_of_a_long_error_is_its_first_and_last_line(self) -> None:
        error = ValueError("at 5:8:\n" + "def kernel(x):\n" * 9 + "        ^\nname 'y' is not defined")
        assert described(error, None) == "ValueError: at 5:8: … name 'y' is not defined"

    def test_has_no_control_characters(self) -> None:
        assert described(ValueError("\x1b[31mred\x1b[0m\tand\r\nmore"), None) == "ValueError: [31mred [0m and more"

    def test_of_an_error_without_a_message_is_its_kind(self) -> None:
        assert described(AssertionError(), None) == "AssertionError"


def test_gradients_count_of_what_is_neither_whole_nor_fixed() -> None:
    inputs = {"x": torch.ones(2), "table": torch.ones(2), "index": torch.ones(2, dtype=torch.int64), "eps": 1e-6}

    def spec(**options: Any) -> Spec:
        return Spec(name="one", op=abs, reference=abs, cases=[Case("a", rows=1)], make_inputs=dict, **options)

    assert spec().leaves(inputs) == ["x", "table"]
    assert spec(fixed=("table",)).leaves(inputs) == ["x"]
    assert spec(differentiable=False).leaves(inputs) == []
