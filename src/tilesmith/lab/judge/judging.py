"""Judge one candidate: record its calls in a confined process, replay them in a clean one, gather the verdict.

The verdict is about the launches that the candidate makes, not about what its process says. They are replayed on inputs
that the process never saw. So results from a cache, from NumPy or from a forged record are wrong there.

One judgement, with the stage of `verdict.STAGES` that each step can fail:

1. Parse the candidate, and import it in the confined process (`recording/`): loads.
2. For each trial (a case, dtype and layout of the task), record one call as a tape of launches: runs.
3. Apply the rules to the tape (`tape_checks.py`): honest.
4. Replay the tape in a clean process on fresh inputs (`replaying/`), and compare with the reference: right, safe.
5. In a third process, compile the kernels of the first trial and count bytes: compiles.
6. On a GPU, decide what stayed open, and take the times (`timing/`): fast.

A `Failure` of a step becomes a reason of the verdict; with `open` the candidate is unproven, not wrong. To add a rule,
write it in `tape_checks.py`; to add a stage, name it in `verdict.STAGES` and raise a `Failure` of it here.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from tilesmith.lab.judge.candidate import UNREADABLE, Candidate, parsed, readable
from tilesmith.lab.judge.cuda.replayed import DeviceReplayer
from tilesmith.lab.judge.cuda.stage import CudaStage, started_on_gpu
from tilesmith.lab.judge.cuda.toolkit import missing_tool
from tilesmith.lab.judge.describing import SECONDS_FOR_FACTS, bytes_and_floor, compiled_trials
from tilesmith.lab.judge.isolation import sandbox
from tilesmith.lab.judge.isolation.children import Child, Ended, Nursery
from tilesmith.lab.judge.isolation.limits import Limits
from tilesmith.lab.judge.isolation.sandbox import remove_folder
from tilesmith.lab.judge.recorded import Failure, Recorded, Recorder
from tilesmith.lab.judge.replayed import Replayer
from tilesmith.lab.judge.shared_values import BadOutput
from tilesmith.lab.judge.sizing import sizes_of
from tilesmith.lab.judge.tape_checks import findings, live_steps, mark_steps
from tilesmith.lab.judge.task import Task, Trial
from tilesmith.lab.judge.timing.gpu_stage import NEEDS_GPU, GpuStage, placed_at
from tilesmith.lab.judge.timing.reference_time import References
from tilesmith.lab.judge.trying import Trying
from tilesmith.lab.judge.verdict import STAGES, Reason, Verdict, reward, speed_of
from tilesmith.toolchain.cache_folder import cache_folder, require_writable_cache
from tilesmith.toolchain.compiler import DEFAULT_TARGETS

TARGETS = tuple(str(target) for target in DEFAULT_TARGETS)


@dataclass(frozen=True)
class Options:
    """How to judge. Without a seed, the judge draws one and the verdict names it.

    Kernels must compile for one of the targets, because a kernel may be meant for one vendor. With `every_target` they
    must compile for each.
    """

    targets: tuple[str, ...] = TARGETS
    every_target: bool = False
    seed: int | None = None
    facts: bool = True  # compile, and count bytes and sectors
    device: str | None = None  # where to time: "cuda", "" for nowhere; None: a GPU if there is one
    progress: Callable[[str], None] = field(default=lambda what: None, compare=False)


class Judge:
    """Judges candidates, from one thread or several. Its nursery keeps PyTorch and Triton imported between them."""

    def __init__(self, nursery: Nursery | None = None) -> None:
        self._nursery = nursery or Nursery()
        self._references = References()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the nursery now; the first judgement then needs not wait for its imports."""
        require_writable_cache()
        self._nursery.start()

    def close(self) -> None:
        self._nursery.close()

    def judge(self, task: Task, candidate: Candidate, options: Options | None = None) -> Verdict:
        """Return the verdict on one candidate. Raises TaskError where the task itself cannot be judged."""
        self.start()
        scratch = Path(tempfile.mkdtemp(prefix="tilesmith-judge-")).resolve()
        try:
            return _Judgement(self._nursery, task, candidate, options or Options(), scratch).verdict(self._references)
        finally:
            remove_folder(scratch)


_default: Judge | None = None
_default_lock = threading.Lock()


def default_judge() -> Judge:
    """Return the judge of this process, which stays warm until the process ends."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Judge()
        return _default


class _Judgement:
    """One candidate on one task: the steps above, in order."""

    def __init__(self, nursery: Nursery, task: Task, candidate: Candidate, options: Options, scratch: Path) -> None:
        self._nursery = nursery
        self._task = task
        self._candidate = candidate
        self._options = options
        self._scratch = scratch
        self._seed = secrets.randbits(48) if options.seed is None else options.seed
        self._started = time.perf_counter()
        self._reasons: list[Reason] = []  # why the candidate fails
        self._open: list[Reason] = []  # what could not be decided
        self._notes: dict[str, None] = {}  # a set in the order of insertion
        self._trials = task.trials(self._seed)
        self._right = 0
        self._trying: Trying | None = None
        self._times: dict[str, Any] | None = None
        self._kernels: list[dict[str, Any]] = []
        self._facts_trial: Trial | None = None
        self._facts_with_gradients = False
        self._protections: tuple[str, ...] = ()
        self._printed = ""
        chosen = options.device
        self._device = ("cuda" if torch.cuda.is_available() else "") if chosen is None else chosen
        self._cuda: CudaStage | None = None  # for a candidate that builds extensions
        self._missing: str | None = None  # to build CUDA sources

    def verdict(self, references: References) -> Verdict:
        try:
            self._parse()
            self._candidate.write_to(self._folder("record"))
            self._prepare_builds()
            with (
                self._child("record") as recording,
                self._child("replay" if self._cuda is None else "time") as replaying,
                self._child("replay", compiles=True) as describing,
                ThreadPoolExecutor(2) as pool,
            ):
                try:
                    self._judge(recording, replaying, describing, pool)
                finally:
                    self._printed = recording.printed()
            self._on_gpu(references)
        except Failure as failure:
            self._note(failure)
        return self._summed_up()

    def _parse(self) -> None:
        main = self._candidate.main
        if self._candidate.problem is not None:
            raise Failure(Reason("unreadable", "loads", self._candidate.problem))
        try:
            parsed(self._candidate.files[main])
        except UNREADABLE as error:
            line, what = getattr(error, "lineno", None), getattr(error, "msg", error)
            raise Failure(Reason("syntax-error", "loads", f"syntax error: {what}", file=main, line=line)) from None

    def _prepare_builds(self) -> None:
        """Let a candidate build its extensions if nvcc and a GPU are present."""
        if not self._candidate.builds_extensions:
            return
        self._missing = missing_tool(self._device)
        if self._missing is not None:
            return  # its kernels may be Triton's
        self._candidate.write_to(self._folder("build"))
        build = partial(self._child, "build", compiles=True)
        self._cuda = CudaStage(build, self._folder("time"), self._scratch)

    def _folder(self, role: str) -> Path:
        """Return the folder that children of a role may write to: the candidate's process reaches no other."""
        folder = self._scratch / role
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def _child(self, role: str, *, compiles: bool = False) -> Iterator[Child]:
        """Start a child process. All run code of a candidate and are confined, except the process on the GPU."""
        rules = self._task.rules
        limits = Limits(rules.seconds, rules.gigabytes)
        cache = cache_folder() if (compiles and role != "build") or role == "time" else None
        on_gpu = role == "record" and self._cuda is not None
        if on_gpu:
            child = started_on_gpu(self._nursery, self._folder(role), limits)
        else:
            child = self._nursery.child(
                role, str(self._folder(role)), limits, confined=role != "time", programs=compiles, cache=cache
            )
        try:
            yield child
        finally:
            child.end()

    def _judge(self, recording: Child, replaying: Child, describing: Child, pool: ThreadPoolExecutor) -> None:
        recorder = Recorder(self._task, recording, self._seed, self._cuda.builds.answer if self._cuda else None)
        self._options.progress("loading")
        self._protections = self._asked(recording.ready, "loads")
        self._asked(lambda: recorder.load(self._candidate.main), "loads")
        device = partial(DeviceReplayer, device=self._device)
        replayer = (Replayer if self._cuda is None else device)(self._task, replaying, self._seed)
        trying = self._trying = Trying(
            self._task, self._trials, self._candidate, self._seed, recorder, replayer,
            self._asked, self._check_tape, partial(self._recorder, self._task, turned=""), sizes_of(self._candidate),
            pool, self._options.progress,
        )  # fmt: skip
        facts: list[Future[list[dict[str, Any]]]] = []
        describer = Replayer(self._task, describing, self._seed)

        def describe(recorded: Recorded) -> None:
            if self._options.facts and self._cuda is None:
                self._facts_trial, self._facts_with_gradients = recorded.trial, recorded.gradients is not None
                facts.append(pool.submit(describer.facts, recorded, self._options.targets, SECONDS_FOR_FACTS))

        trying.run(describe)
        self._notes.update(dict.fromkeys(trying.notes))
        for one in facts:
            self._gather_facts(one)
        self._gather(trying.judged)
        if isinstance(trying.replayer, DeviceReplayer):
            self._watch_kernels(trying.replayer, trying.seen)
        elif self._kernels:
            for failure in compiled_trials(describer, trying, self._kernels, self._options.targets):
                self._note(failure)

    @contextmanager
    def _recorder(self, task: Task, turned: str | None = None) -> Iterator[Recorder]:
        """Start a new process with the candidate in it."""
        with self._child("record") as child:
            recorder = Recorder(task, child, self._seed, self._cuda.builds.answer if self._cuda else None)
            self._asked(child.ready, "loads")
            self._asked(lambda: recorder.load(self._candidate.main, turned=turned), "loads")
            yield recorder

    def _asked(self, ask: Callable[[], Any], stage: str) -> Any:
        """Ask the candidate's process; its end is a reason. CUDA sources that it builds leave the verdict open."""
        try:
            return ask()
        except Failure as failure:
            hidden = self._cuda is None and self._candidate.uses_cuda_sources
            if failure.reason.kind not in ("import-error", "exception") or not hidden:
                raise
            message = f"the candidate builds CUDA sources, {self._missing or 'whose launches the judge cannot replay'}"
            advice = f"Write the kernel in Triton or Gluon. Its process said: {failure.reason.message[:200]}"
            raise Failure(Reason("cuda-sources", failure.reason.stage, message, advice), open=True) from None
        except Ended as ended:
            kind = "timeout" if "still running" in str(ended) else "ended"
            advice = "Is there a loop that never ends?" if kind == "timeout" else "Let the function return."
            raise Failure(Reason(kind, stage, f"the candidate {ended}", advice)) from None
        except BadOutput as error:
            raise Failure(Reason("garbage", stage, f"the candidate's process sends {error}")) from None

    def _check_tape(self, recorded: Recorded) -> None:
        """Keep the steps that matter, and apply the rules to them."""
        mark_steps(recorded.tape, recorded.forward_steps)
        steps = live_steps(recorded.tape, recorded.references)
        dropped = len(recorded.tape["steps"]) - len(steps)
        if dropped:
            self._notes[f"{dropped} operators or launches of a call do not contribute to the outputs"] = None
        recorded.tape["steps"] = steps
        rules, inputs = self._task.rules, recorded.inputs.values()
        if any(isinstance(one, torch.Tensor) and not one.numel() for one in inputs):
            rules = replace(rules, must_launch=False)  # the sum of no rows is zero without a kernel
        for finding in findings(steps, recorded.tape, rules, self._candidate, builds=self._cuda is not None):
            raise Failure(finding.reason, open=finding.open)

    def _gather(self, judged: Sequence[tuple[Trial, Future[None]]]) -> None:
        for trial, future in judged:
            try:
                future.result()
                self._right += 1
            except Failure as failure:
                self._note(placed_at(failure, trial))

    def _watch_kernels(self, replayer: DeviceReplayer, seen: Sequence[Recorded]) -> None:
        """Let the driver and compute-sanitizer say what they know about CUDA kernels."""
        if self._cuda is None or not seen or self._reasons:
            return
        self._kernels = self._cuda.kernels(replayer, seen[0])
        reasons, notes = self._cuda.judged(replayer, seen)
        self._reasons += reasons
        self._notes.update(dict.fromkeys(notes))

    def _gather_facts(self, facts: Future[list[dict[str, Any]]]) -> None:
        try:
            self._kernels = facts.result()
        except Failure as failure:
            self._note(placed_at(failure, self._facts_trial) if self._facts_trial else failure)
            return
        except Ended as ended:
            self._note(Failure(Reason("compiler", "compiles", f"the compiler {ended}")))
            return
        for kernel in self._kernels:
            errors = kernel["errors"]
            if errors and len(errors) < len(self._options.targets) and not self._options.every_target:
                self._notes[f"{kernel['name']} does not compile for {', '.join(errors)}"] = None
                continue
            for target, error in errors.items():
                reason = Reason(
                    "compile-error", "compiles", str(error)[:600], f"The kernel must compile for {target}.",
                    kernel=kernel["name"], file=self._candidate.main, line=kernel.get("line"),
                )  # fmt: skip
                self._note(Failure(reason))

    def _on_gpu(self, references: References) -> None:
        """Let a GPU, if there is one, decide what stayed open, and take the times."""
        if not self._device or self._reasons or any(one.kind != NEEDS_GPU for one in self._open):
            return
        self._options.progress("timing")
        places = {(one.case, one.dtype, one.layout) for one in self._open}
        seen = self._trying.seen if self._trying else []
        waiting = [one for one in seen if (one.trial.case.name, one.trial.dtype_name, one.trial.layout.name) in places]

        known = references if self._device == "cuda" else None
        stage = GpuStage(self._task, self._seed, self._device, self._child, self._recorder, self._check_tape, known)
        found = stage.run(waiting, seen)
        self._open = []
        self._right += len(found.decided)
        self._times = found.times
        self._notes.update(dict.fromkeys(found.notes))
        for trial, failure in found.failures:
            self._note(placed_at(failure, trial))

    def _note(self, failure: Failure) -> None:
        place = self._open if failure.open else self._reasons
        if failure.reason not in place:
            place.append(failure.reason)

    def _summed_up(self) -> Verdict:
        by_stage = sorted(self._reasons, key=lambda one: STAGES.index(one.stage))
        stages = self._stages(by_stage)
        failed = by_stage[0].stage if by_stage else None
        passed = [stage for stage in STAGES if stages[stage] == "passed"]
        moved, floor = bytes_and_floor(self._task, self._kernels, self._facts_trial, self._facts_with_gradients)
        trials = self._trying.planned if self._trying is not None else len(self._trials)
        right = self._right / max(1, trials)
        return Verdict(
            task=self._task.name,
            candidate=self._candidate.name,
            digest=self._candidate.digest,
            outcome="fail" if by_stage else "unproven" if self._open else "pass",
            stage=failed or (passed[-1] if passed else "loads"),
            reasons=(*by_stage, *self._open),
            stages=stages,
            trials=trials,
            trials_right=self._right,
            kernels=self._kernels,
            bytes=moved,
            floor_bytes=floor,
            facts_case=self._facts_trial.case.name if self._facts_trial else None,
            times=self._times,
            reward=reward(stages, right, speed_of(self._times, floor / moved if floor and moved else 0.0)),
            seed=self._seed,
            seconds=round(time.perf_counter() - self._started, 3),
            protections=self._protections,
            missing_protections=tuple(one for one in sandbox.ALL if one not in self._protections),
            printed=readable(self._printed[-2000:]),
            notes=tuple(self._notes),
            versions={"torch": torch.__version__, "triton": triton.__version__},
        )

    def _stages(self, reasons: Sequence[Reason]) -> dict[str, str]:
        failed = {reason.stage for reason in reasons}
        left_open = {reason.stage for reason in self._open}
        first = min((STAGES.index(stage) for stage in failed), default=len(STAGES))
        stages = {}
        for number, stage in enumerate(STAGES):
            if stage in failed:
                stages[stage] = "failed"
            elif stage == "fast":
                stages[stage] = "passed" if self._times is not None else "skipped"  # needs a GPU
            elif stage == "compiles":
                stages[stage] = "passed" if self._kernels and self._options.facts else "skipped"
            elif number > first or (self._open and stage in ("right", "safe")):
                stages[stage] = "skipped" if number > first else "open"
            else:
                stages[stage] = "open" if stage in left_open else "passed"
        return stages
