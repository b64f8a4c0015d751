"""The judge: is this kernel right, safe, honest and fast, whoever or whatever wrote it?

    verdict = judge("task.py", "candidate.py")

Files, in reading order:

- `task.py`: what a candidate must compute, on which inputs, under which rules.
- `candidate.py`: the files of a candidate.
- `verdict.py`: the verdict, its reasons and its reward, as data.
- `isolation/`: confined processes, and what the judge shares with them.
- `recording/`: in the candidate's process: what it launches.
- `replaying/`: in a clean process: the same launches on other inputs.
- `conversing/`: a whole program in its confined process, called from here.
- `cuda/`: extensions that a candidate builds, and their launches.
- `shared_values.py`: copies inputs into shared memory and outputs out of it.
- `expected.py`: what the definition gives, and the comparison with it.
- `tape_checks.py`: what follows from the record of launches alone.
- `recorded.py`: asks the candidate's process for one trial.
- `replayed.py`: replays one trial and says what is wrong.
- `timing/`: on a GPU: times that a candidate cannot forge.
- `sizing/`: sizes at which a candidate may do something else.
- `constructor_work.py`: weights that a module computed with before the call.
- `inverting.py`: calls with a condition of the candidate's text inverted.
- `trying.py`: the trials of one judgement, recorded and replayed.
- `describing.py`: what the compiler says about the other trials.
- `judging.py`: one candidate, from its file to its verdict.
- `bridges/`: tasks in the formats of others.
- `judge_call.py`: `judge`, the function that users call.
- `series.py`: many candidates: in parallel, resumable, one line of JSON each.
- `output/`: terminal, table and HTML page.
"""

from tilesmith.lab.judge.bridges.opening import task_at
from tilesmith.lab.judge.candidate import Candidate, CandidateError
from tilesmith.lab.judge.judge_call import judge
from tilesmith.lab.judge.judging import Judge, Options, default_judge
from tilesmith.lab.judge.task import Rules, Task, TaskError
from tilesmith.lab.judge.verdict import Reason, Reward, Verdict, schema

__all__ = [
    "Candidate",
    "CandidateError",
    "Judge",
    "Options",
    "Reason",
    "Reward",
    "Rules",
    "Task",
    "TaskError",
    "Verdict",
    "default_judge",
    "judge",
    "schema",
    "task_at",
]
