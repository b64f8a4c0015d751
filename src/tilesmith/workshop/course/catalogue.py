"""All exercises by id: those of the package, and private ones from any folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.course.exercise_file import load_exercise

BUILT_IN = Path(__file__).parents[1] / "exercises"
TRACKS = ("beginner", "norms", "patterns", "space", "matmul", "attention", "evoformer", "tools", "case", "cuda")


class Catalogue(Mapping[str, Exercise]):
    """Exercises by id, in course order: track by track, each exercise after those it needs."""

    def __init__(self, sets: Sequence[Path] = ()) -> None:
        found: dict[str, Exercise] = {}
        for folder in (BUILT_IN, *sets):
            for exercise in _exercises_in(folder):
                if exercise.id in found:
                    raise ExerciseError(f"{exercise.folder}: {found[exercise.id].folder} has the same id")
                found[exercise.id] = exercise
        self._exercises = {exercise.id: exercise for exercise in _ordered(found)}

    def __getitem__(self, key: str) -> Exercise:
        try:
            return self._exercises[key]
        except KeyError:
            close = get_close_matches(Path(key).stem.lower().replace("_", "-"), self, 1)
            advice = f"did you mean {close[0]}?" if close else "`tilesmith learn list` shows them"
            raise ExerciseError(f"no exercise is called {key!r}; {advice}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._exercises)

    def __len__(self) -> int:
        return len(self._exercises)

    def __contains__(self, key: object) -> bool:
        return key in self._exercises

    def tracks(self) -> dict[str, list[Exercise]]:
        """Return the exercises of every track, in course order."""
        tracks: dict[str, list[Exercise]] = {}
        for exercise in self._exercises.values():
            tracks.setdefault(exercise.track, []).append(exercise)
        return tracks


def _exercises_in(folder: Path) -> list[Exercise]:
    if not folder.is_dir():
        raise ExerciseError(f"{folder}: this folder of exercises does not exist")
    folders = sorted(path.parent for path in folder.glob("*/exercise.toml"))
    if not folders:
        raise ExerciseError(f"{folder}: no subfolder has an exercise.toml, so there is no exercise")
    return [load_exercise(one) for one in folders]


def _ordered(found: Mapping[str, Exercise]) -> Iterator[Exercise]:
    """Yield the exercises track by track; within a track, an exercise follows those it needs."""
    for exercise in found.values():
        for needed in exercise.needs:
            if needed not in found:
                raise ExerciseError(f"{exercise.folder}: needs {needed!r}, but no exercise has this id")
    others = sorted({one.track for one in found.values()} - set(TRACKS))
    for track in (*TRACKS, *others):
        waiting = {one.id: one for one in found.values() if one.track == track}
        while waiting:
            ready = [one for one in waiting.values() if not waiting.keys() & set(one.needs)]
            if not ready:
                raise ExerciseError(f"the exercises {', '.join(waiting)} need each other")
            yield ready[0]
            del waiting[ready[0].id]
