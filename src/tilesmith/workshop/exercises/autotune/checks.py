"""Tunes as Triton does, with the interpreter in place of a GPU, and counts the tunings and the candidates."""

import math
from unittest import mock

import torch

from tilesmith.toolchain.interpreter.running import Autotuner
from tilesmith.workshop.checking.program_check import Wrong, kernels_run

WIDTHS = (1, 2, 3, 60, 64, 65, 100, 128, 129, 180, 200)
LONG = 1000


class Tuning:
    """Stands in for Autotuner.run: a new key tries every candidate that pruning leaves, on the caller's own tensors."""

    def __init__(self):
        self.chosen, self.trials = {}, {}

    def __call__(self, tuner, *arguments, **options):
        given = tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
        named = {**given, **options}
        key = (id(tuner), *(self._of(named, name) for name in tuner.keys))
        if key not in self.chosen:
            configs = list(tuner.prune_configs(options)) if len(tuner.configs) > 1 else list(tuner.configs)
            if not configs:
                raise Wrong(f"pruning leaves no candidate for {self._shown(named)}.")
            self.trials[key] = [dict(one.kwargs) for one in configs]
            for config in configs:
                self._run(tuner, named, arguments, options, config)
            tuner.pre_hook({**named, **configs[0].all_kwargs()}, reset_only=True)
            self.chosen[key] = configs[0]
        return tuner.fn.run(*arguments, **options, **self.chosen[key].all_kwargs())

    @staticmethod
    def _run(tuner, named, arguments, options, config):
        named = {**named, **config.all_kwargs()}
        tuner.pre_hook(named)
        tuner.fn.run(*arguments, **options, **config.all_kwargs())
        tuner.post_hook(named, exception=None)

    @staticmethod
    def _of(named, name):
        if name not in named:
            raise Wrong(f"the key names {name!r}, but the kernel was not given an argument of this name.")
        return named[name]

    @staticmethod
    def _shown(named):
        return ", ".join(f"{name} = {value}" for name, value in named.items() if isinstance(value, int))


def tuned(program, widths):
    """Call row_sums with each width once and again; return the tuning, and the first result that is wrong."""
    tuning, wrong = Tuning(), None

    def run(tuner, *arguments, **options):
        return tuning(tuner, *arguments, **options)

    with kernels_run(), mock.patch.object(Autotuner, "run", run):
        for columns in widths:
            rows = 2 + columns % 2
            x = torch.randint(1, 8, (rows, columns)).float()
            for call in ("first", "second"):
                found = program.row_sums(x)
                if not isinstance(found, torch.Tensor) or found.shape != (rows,):
                    raise Wrong(f"row_sums returns {found!r} for {rows} rows, but a tensor of {rows} sums is wanted.")
                if wrong is None and not torch.equal(found, x.sum(1)):
                    wrong = (columns, call, found.tolist(), x.sum(1).tolist())
    return tuning, wrong


def check_result(program):
    tuning, wrong = tuned(program, WIDTHS)
    if not tuning.trials:
        raise Wrong("no autotuner ran: keep @triton.autotune above the kernel.")
    if wrong is not None:
        columns, call, found, wanted = wrong
        lesson = (
            "The kernel adds to memory that nobody cleared. reset_to_zero clears it while the tuner tries candidates, "
            "and not in later calls: allocate the output with torch.zeros."
            if any(map(math.isnan, found))
            else "This call tuned, and every candidate added its sums to the same output. Let the tuner clear "
            "it: reset_to_zero."
            if call == "first"
            else "Only a later call is wrong: which argument of the kernel depends on the width, and is not passed?"
        )
        raise Wrong(f"the {call} call with {columns} columns returns {found}, but {wanted} is right.\n{lesson}")


def check_candidates(program):
    for columns in (*WIDTHS, LONG):
        tuning, wrong = tuned(program, (columns,))
        if wrong is not None:
            raise Wrong(
                f"with {columns} columns the result is {wrong[2]}, but {wrong[3]} is right. Is the grid too small?"
            )
        blocks = [one.get("BLOCK_SIZE", 0) for trials in tuning.trials.values() for one in trials]
        longest = max(1 << (columns - 1).bit_length(), 64)
        if columns == LONG and len(set(blocks)) < 4:
            raise Wrong(
                f"with {columns} columns only the blocks {sorted(blocks)} are tried. Keep at least four candidates."
            )
        if max(blocks) > longest:
            raise Wrong(
                f"with {columns} columns a block of {max(blocks)} is tried, but a block over {longest} has "
                "more masked lanes "
                "than elements. Leave it out in early_config_prune."
            )


def measure(program):
    tuning, _ = tuned(program, WIDTHS)
    return {"tunings": len(tuning.trials), "trials": sum(map(len, tuning.trials.values()))}
