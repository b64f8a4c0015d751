# mypy: disable-error-code="no-untyped-call"
# PyTorch types its rarer functions not at all.
"""`tilesmith prove`: a patched model trains the same but for rounding, and a wrong one does not."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

import tilesmith.patch.parts.norms
from tilesmith.cli import app
from tilesmith.lab.schemas import schema
from tilesmith.ops.rms_norm import rms_norm
from tilesmith.training.proof import subject
from tilesmith.training.proof.training_run import TrainingRun
from tilesmith.training.proof.verdict import differences

pytest.importorskip("transformers", minversion="4.53")

TINY = (
    "--steps", "6", "--batch-size", "2", "--seq-len", "8", "--set", "hidden_size=16", "--set", "intermediate_size=24",
    "--set", "num_attention_heads=2", "--set", "num_key_value_heads=1", "--set", "head_dim=8", "--set",
    "num_hidden_layers=1", "--set", "vocab_size=40",
)  # fmt: skip


def prove(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["prove", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_patched_llama_differs_by_rounding(tmp_path: Path) -> None:
    files = [tmp_path / "proof.json", tmp_path / "proof.html"]
    result = prove("llama", *TINY, "--json", files[0], "--html", files[1])
    assert result.exit_code == 0, result.output
    proof: dict[str, Any] = json.loads(files[0].read_text())
    assert [run["name"] for run in proof["runs"]] == ["unpatched", "patched", "unpatched, other rounding"]
    plain, patched, other = proof["runs"]
    assert all(len(run["losses"]) == len(run["gradient_norms"]) == 6 for run in proof["runs"])
    assert patched["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert other["gradient_norms"] != plain["gradient_norms"], "other rounding changes something"
    assert proof["is_rounding"]
    assert {"norm", "rotary", "mlp", "loss", "attention"} == set(proof["patch"]["swapped"])
    assert "is rounding" in result.output
    page = files[1].read_text()
    assert page.count("<polyline") == 2 * len(proof["runs"])
    assert "Gradient norm of each step" in page


def test_unpatched_model_that_is_not_finite_is_refused() -> None:
    result = prove("llama", *TINY, "--steps", "3", "--learning-rate", "1e30", "--dtype", "float16")
    assert result.exit_code == 2
    words = "prove: the unpatched model has a loss or gradients that are not finite at step 2"
    assert words in " ".join(result.output.split())


def test_no_sequence_begins_with_the_padding_token() -> None:
    """Its embedding is zero, so every norm would multiply its gradient by 10¹⁵, and the gradient would overflow."""
    sizes = "--set", "rms_norm_eps=1e-30", "--set", "num_hidden_layers=2"
    result = prove("gemma2", *TINY, "--steps", "1", "--batch-size", "8", *sizes)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_encoder_differs_by_rounding(family: str) -> None:
    result = prove(family, *TINY, "--steps", "2", "--seq-len", "12", "--set", "num_hidden_layers=2")
    assert result.exit_code == 0, result.output
    assert "loss (1)" in result.output


def test_proof_follows_its_schema(tmp_path: Path) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    file = tmp_path / "proof.json"
    assert prove("gpt2", "--steps", "2", "--batch-size", "1", "--seq-len", "8", "--json", file).exit_code == 0
    assert list(jsonschema.Draft202012Validator(schema("prove")).iter_errors(json.loads(file.read_text()))) == []


def test_kernels_in_the_interpreter_differ_by_rounding() -> None:
    result = prove("llama", *TINY, "--steps", "1", "--interpret")
    assert result.exit_code == 0, result.output


def test_norm_that_is_wrong_by_a_thousandth_is_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps) * 1.001

    monkeypatch.setattr(tilesmith.patch.parts.norms, "rms_norm", larger)
    result = prove("llama", *TINY)
    assert result.exit_code == 1
    assert "more than rounding" in result.output


def test_gradient_of_one_parameter_that_is_wrong_is_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Smaller(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, weight: Tensor) -> Tensor:
            return weight.view_as(weight)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            return 0.99 * gradient

    def wrong(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, Smaller.apply(weight), eps)

    monkeypatch.setattr(tilesmith.patch.parts.norms, "rms_norm", wrong)
    result = prove("llama", *TINY, "--steps", "1")
    assert result.exit_code == 1
    # Every norm's gradient is wrong by the same share. Rounding decides which one is the furthest off.
    assert re.search(r"gradient of one parameter \(model\.\S*norm\.weight\)", " ".join(result.output.split()))


def test_parameter_without_a_gradient_is_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def detached(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight.detach(), eps)

    monkeypatch.setattr(tilesmith.patch.parts.norms, "rms_norm", detached)
    result = prove("llama", *TINY, "--steps", "1")
    assert result.exit_code == 1
    assert "has a gradient in one of the runs only" in " ".join(result.output.split())


def test_heads_follow_the_sizes_that_are_set() -> None:
    sizes = ("--set", "hidden_size=48", "--set", "num_attention_heads=3", "--set", "intermediate_size=32")
    result = prove("modernbert", *sizes, "--steps", "1", "--batch-size", "1", "--seq-len", "8")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["n_positions", "max_position_embeddings"])
def test_size_with_two_names_is_set_by_either(name: str) -> None:
    config = subject.Subject("gpt2", {name: 1024}).configuration()
    assert (config.n_positions, config.max_position_embeddings) == (1024, 1024)


@pytest.mark.parametrize(
    ("steps", "value", "passes"),
    [(1, 30.0, True), (4, 30.0, True), (6, 1.5, False), (1, float("nan"), False)],
    ids=["a spike", "spikes of a tenth", "a shift of more steps", "not finite"],
)
def test_few_gradients_may_spike_at_other_steps(steps: int, value: float, passes: bool) -> None:
    """Rounding decides at which steps gradients spike. The run with other rounding need not spike with them."""
    rounding = [1 + 1e-3 * (step % 7) for step in range(200)]
    patched = [value if step < steps else one for step, one in enumerate(rounding)]

    def run(name: str, norms: list[float]) -> TrainingRun:
        return TrainingRun(name, [1.0] * 200, norms, {"weight": torch.ones(3)}, {"weight": torch.ones(3)})

    plain, ours, other = run("plain", [1.0] * 200), run("patched", patched), run("other", rounding)
    found = differences(plain, ours, other, {"weight": torch.zeros(3)}, torch.bfloat16)
    assert next(one.passed for one in found if one.what == "gradient norm") is passes


def test_configuration_file_of_a_model_is_read(tmp_path: Path) -> None:
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 40, "max_position_embeddings": 16,
    }  # fmt: skip
    transformers.Qwen2Config(**sizes).save_pretrained(tmp_path)
    data = tmp_path / "text.txt"
    data.write_text("too many tokens for this vocabulary")
    result = prove(tmp_path, "--steps", "1", "--batch-size", "1", "--seq-len", "8", "--set", "vocab_size=300",
                   "--data", data)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "qwen2" in result.output


@pytest.mark.parametrize("name", ["resnet", "lama", "meta-llama/Llama-3.2-1B", "no such name"])
def test_unknown_name_is_refused_without_asking_an_absent_network_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read: list[dict[str, Any]] = []

    def read_nothing(name: str, **options: Any) -> None:
        read.append(options)
        raise OSError(f"no files of {name}")

    monkeypatch.setattr(subject, "_answers", lambda address: asked.append(address))  # None: no answer
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", read_nothing)
    result = prove(name)
    assert result.exit_code == 2
    assert f"{name} is neither a family (llama, " in result.stderr
    assert "huggingface.co does not answer" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert len(asked) == 1
    assert read == [{"local_files_only": True}]


def test_server_that_does_not_answer_in_time_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SECONDS_TO_ANSWER", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
        assert not subject._answers(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_server_that_refuses_counts_as_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SECONDS_TO_ANSWER", 120.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        assert subject._answers(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["./nowhere"], "./nowhere is neither a family (llama, "),
        (["lama"], "; did you mean llama?"),
        ([__file__], f"prove: {__file__} is no configuration of Hugging Face: "),
        (["llama", "--dtype", "int8"], "dtype is 'int8', but must be one of float32, bfloat16, float16"),
        (["llama", "--set", "hidden_size"], "--set is 'hidden_size', but must be NAME=VALUE"),
        (["llama", "--seq-len", "999"], "--seq-len is 999, but the model has 256 positions"),
        (["llama", "--data", "nowhere"], "--data: cannot read nowhere"),
        (["llama", "--learning-rate", "nan"], "--learning-rate is nan, but must be positive and finite"),
        (["llama", "--learning-rate", "-1"], "--learning-rate is -1.0, but must be positive and finite"),
        (["llama", "--seed", str(2**64)], f"--seed is {2**64}, but must be between 0 and"),
        (["llama", "--batch-size", str(10**15)], "out of memory; try smaller sizes"),
        (["llama", "--set", "nosuch=3"], "the configuration of llama has no nosuch"),
        (["llama", "--set", "hidden_size=abc"], "the configuration of llama refuses --set"),
        (["llama", "--set", "hidden_size=-3"], "the configuration of llama refuses --set"),
        (["llama", "--set", "num_attention_heads=0"], "the configuration of llama refuses --set"),
        (["llama", "--set", "intermediate_size=100000000000"], "the sizes are too large: the parameters need"),
        (["llama", "--set", "num_key_value_heads=3"], "llama cannot train with these --set"),
        (["llama", "--pretrained"], "which has no pretrained weights"),
        (["llama", "--data", __file__, "--set", "vocab_size=9"], "the data have 256 tokens, but the model has 9"),
    ],
)
def test_wrong_usage_prints_one_line(arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = prove(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
