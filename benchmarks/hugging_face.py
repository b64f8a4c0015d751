"""Training steps of models of five families, as they are, compiled, patched by Liger and patched by Tilesmith.

    python benchmarks/hugging_face.py --out benchmarks/results/models
    python benchmarks/hugging_face.py --out /tmp/steps --toy      # small models; also without a GPU

A step is forward, loss, backward and fused AdamW in bf16. Every version of a model starts from the same weights and
sees the same tokens, so the first losses show whether all compute the same. Each version of each model is a process of
its own. All processes build, compile and warm up at once; steps are timed while all other processes are stopped: first
those of the eager versions, then those of the compiled ones. `--out` gets one file for each model, written again after
each version.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = time.time()
STEPS, WARM_UP, FEWEST = 24, 4, 8  # steps before a timed one: AdamW makes its states, and clocks settle
TRIES = 12  # of a warm-up step: many processes share the GPU's memory
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TOY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **HEADS, "head_dim": 16, "vocab_size": 256}
SPECIAL_TOKENS = {f"{name}_token_id": number % 3 for number, name in enumerate(("pad", "bos", "eos", "sep", "cls"))}


@dataclass(frozen=True)
class Model:
    """The classes and sizes of a model, the shape of its batch and what a toy has in place of its sizes."""

    name: str  # of its classes in transformers: {name}Config and {name}{head}
    head: str
    batch: int
    length: int
    sizes: dict[str, Any]
    toy: dict[str, Any] = field(default_factory=lambda: TOY)


MODELS = {
    "llama-1b": Model("Llama", "ForCausalLM", 4, 2048,
        {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096, "tie_word_embeddings": True}),
    "qwen3-0.6b": Model("Qwen3", "ForCausalLM", 4, 2048,
        {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096,
         "tie_word_embeddings": True}),
    "gemma2-2b": Model("Gemma2", "ForCausalLM", 2, 1024,  # only eager attention caps the scores
        {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 4096,
         "attn_implementation": "eager"}),
    "gpt2-medium": Model("GPT2", "LMHeadModel", 8, 1024, {"n_embd": 1024, "n_layer": 24, "n_head": 16},
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}),
    "modernbert-base": Model("ModernBert", "ForMaskedLM", 16, 1024, {},
        TOY | SPECIAL_TOKENS | {"local_attention": 16, "global_attn_every_n_layers": 2}),
}  # fmt: skip
LIGER = ("llama-1b", "qwen3-0.6b", "gemma2-2b")  # the models that Liger 0.8.5 patches
VERSIONS = ("transformers", "liger", "tilesmith", "compile", "tilesmith-compile")
SHOWN = ("milliseconds", "spread", "host_milliseconds", "samples", "peak_bytes", "error", "said")


def built(of: Model, device: str, toy: bool) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, of.name + "Config")(**(of.sizes | (of.toy if toy else {})))
    for key in vars(config):
        if isinstance(getattr(config, key), float) and ("dropout" in key or key.endswith("pdrop")):
            setattr(config, key, 0.0)
    config.use_cache = False
    with torch.device(device):
        return getattr(transformers, of.name + of.head)(config).to(torch.bfloat16).train()


def changed(version: str, model: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Change the model in place; return what to call, and the report of a patched model."""
    import torch

    found: dict[str, Any] = {}
    if version == "liger":
        import liger_kernel.transformers as liger

        getattr(liger, f"apply_liger_kernel_to_{model.config.model_type}")(model=model)
    if version.startswith("tilesmith"):
        from tilesmith.patch import patch, report

        patch(model)
        done = report(model)
        found = {"patched": done.swapped, "left": done.left, "fused": done.fused, "not_fused": done.not_fused}
    return torch.compile(model) if version.endswith("compile") else model, found


def measured(name: str, version: str, options: argparse.Namespace) -> dict[str, Any]:
    """Prepare one version of a model, wait for a line on stdin, and return its row."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else lambda: None
    batch, length = (2, 32) if options.toy else (MODELS[name].batch, MODELS[name].length)
    model = built(MODELS[name], device, options.toy)
    called, found = changed(version, model)
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, model.config.vocab_size, (batch, length), generator=random).to(device)

    def passes() -> Any:
        loss = called(input_ids=tokens, labels=tokens).loss
        loss.backward()
        wait()
        return loss.detach()

    with open(options.case.with_suffix(".lock").with_stem("memory"), "w") as lock:
        if version in ("transformers", "liger"):  # their logits take most memory, their kernels no time to compile
            fcntl.flock(lock, fcntl.LOCK_EX)
        warmed_up(passes, model)
    options.case.with_suffix(".ready").touch()
    sys.stdin.readline()
    faulthandler.dump_traceback_later(15)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses: list[float] = []
    host: list[float] = []
    seconds: list[float] = []
    begun = time.time()
    while len(losses) < STEPS and (len(losses) < WARM_UP + FEWEST or time.time() - begun < options.each):
        wait()
        start = time.perf_counter()
        loss = called(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        host.append(time.perf_counter() - start)
        wait()
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
    timed = sorted(1000 * one for one in seconds[WARM_UP:])
    return {
        "version": version,
        "milliseconds": statistics.median(timed),
        "spread": timed[-1 - len(timed) // 4] - timed[len(timed) // 4],
        "host_milliseconds": 1000 * statistics.median(host[WARM_UP:]),
        "samples": len(timed),
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        "losses": losses[:10],
        "parameters": sum(one.numel() for one in model.parameters()),
        "batch": batch,
        "length": length,
        **found,
    }


def warmed_up(passes: Callable[[], Any], model: Any) -> None:
    """Take two steps without an optimiser; where they fail, wait for other processes to free memory and try again."""
    import torch

    for attempt in range(TRIES):
        try:
            passes()
            model.zero_grad(set_to_none=True)
            passes()
            return
        except RuntimeError as error:  # cuDNN and cuBLAS have errors of their own where memory lacks
            if attempt == TRIES - 1 or not torch.cuda.is_available():
                raise
            print(f"{type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
        finally:
            model.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
        time.sleep(2)


class Case:
    """The process of one version of a model; its files begin with `path`."""

    def __init__(self, name: str, version: str, options: argparse.Namespace, folder: Path) -> None:
        self.name, self.version, self.path = name, version, folder / f"{name.replace('.', '_')}+{version}"
        command: list[str | Path] = [
            sys.executable,
            __file__,
            "--case",
            self.path,
            "--models",
            name,
            "--versions",
            version,
        ]
        command += ["--out", options.out, "--each", str(options.each), *["--toy"] * options.toy]
        with open(self.path.with_suffix(".txt"), "w") as said:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def prepares(self) -> bool:
        return self.runs and not self.path.with_suffix(".ready").exists()

    def signal(self, number: signal.Signals) -> None:
        if self.runs:
            os.killpg(self.process.pid, number)

    def timed(self, seconds: float) -> dict[str, Any]:
        """Return the row of this process, which is over then; what it said last where it has none."""
        why = "not prepared in time" if self.prepares else None
        if self.runs and not why:
            try:
                self.process.communicate(b"go\n", timeout=seconds)
            except subprocess.TimeoutExpired:
                why = f"did not take its steps in {seconds:.0f} s"
        self.signal(signal.SIGKILL)
        found = self.path.with_suffix(".json")
        if found.exists():
            return dict(json.loads(found.read_text()))
        last = self.path.with_suffix(".txt").read_text(errors="replace").splitlines()[-12:]
        return {"version": self.version, "error": why or f"exit status {self.process.wait()}", "said": last}


def rows(cases: list[Case], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each model's name with a row: eager versions first, then the compiled ones and those that were late."""
    for last in (False, True):
        group = [case for case in cases if last or not case.version.endswith("compile")]
        until = seconds - 4 * len(cases) if last else 0.4 * seconds
        while any(case.prepares for case in group) and time.time() - START < until:
            time.sleep(0.2)
        late = [case for case in cases if case.prepares]
        for case in late:
            case.signal(signal.SIGSTOP)
        time.sleep(1)  # the GPU ends what the stopped processes had launched
        for case in group:
            if last or case not in late:
                cases.remove(case)
                yield case.name, case.timed(max(1.0, min(30.0, seconds - (time.time() - START))))
        for case in late:
            case.signal(signal.SIGCONT)


def compare(names: Sequence[str], versions: Sequence[str], options: argparse.Namespace) -> None:
    """Write a file for each model with the rows of its versions."""
    from tilesmith.training.results.provenance import stamped

    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    wanted = [(name, version) for version in sorted(versions, key=lambda one: "compile" not in one) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(*one, options, Path(folder)) for one in wanted if one[1] != "liger" or one[0] in LIGER]
        started = list(cases)
        content = {name: stamped({"model": name, "dtype": "bfloat16", "rows": [], "failed": []}) for name in names}
        gpu = (stamped({})["device"] or "cpu").split()[-1].lower()
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            for name, row in rows(cases, options.seconds):
                content[name]["failed" if "error" in row else "rows"].append(row)
                (options.out / f"{name}-{gpu}.json").write_text(json.dumps(content[name], indent=1) + "\n")
                shown = {key: row[key] for key in SHOWN if key in row}
                print(f"{time.time() - START:.0f} s: {name} {row['version']}: {shown}", flush=True)
        finally:
            for case in started:
                case.signal(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="with commas")
    parser.add_argument("--seconds", type=float, default=280, help="for everything")
    parser.add_argument("--each", type=float, default=3, help="seconds of timed steps for each version")
    parser.add_argument("--toy", action="store_true", help="small models")
    parser.add_argument("--case", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names, versions = options.models.split(","), options.versions.split(",")
    for given, known in ((names, list(MODELS)), (versions, VERSIONS)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(unknown)}: the names are {', '.join(known)}")
    if options.case:
        row = measured(names[0], versions[0], options)
        options.case.with_suffix(".json").write_text(json.dumps(row))
        os._exit(0)  # the next one waits for this process to end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes of all cases end as well
    compare(names, versions, options)


if __name__ == "__main__":
    main()
