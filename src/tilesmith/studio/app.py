"""The routes of the studio."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tilesmith.studio import classroom, language, lessons
from tilesmith.studio.checks import Checks
from tilesmith.studio.commands import PANELS, Commands
from tilesmith.studio.events import Events, Watch
from tilesmith.studio.guard import PICTURE_POLICY
from tilesmith.studio.kernel_files import ConflictError, FileError, Folder, content_of, save
from tilesmith.workshop.course.exercise import Exercise, ExerciseError
from tilesmith.workshop.figures.drawing import STYLE
from tilesmith.workshop.learner.workshop_folder import Workshop

STATIC = Path(__file__).parent / "static"
PALETTE = Path(__file__).parents[1] / "lab" / "report" / "templates" / "palette.css"  # by path: importing lab is slow
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LARGEST_BODY = 4 << 20
Answer = Callable[[Request], Awaitable[Response]]


class Studio:
    """One learner's studio. `class_folder` holds handed-in reports, for an instructor."""

    def __init__(self, workshop: Workshop, files: tuple[Path, ...] = (), class_folder: Path | None = None) -> None:
        self.workshop = workshop
        self.events = Events()
        self.checks = Checks(workshop, self.events)
        self.commands = Commands(self.events)
        self._files = Folder([*files, workshop.folder] if not files or files[0].is_dir() else [workshop.folder, *files])
        self._first = [self._files.name(file.resolve()) for file in files if file.is_file()]
        self._class_folder = class_folder
        self._watch = Watch(self._changed)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            ("", "GET", self._index), ("static/{name}", "GET", self._static), ("api/events", "GET", self._events),
            ("api/course", "GET", self._course), ("api/words", "GET", self._words), ("api/class", "GET", self._class),
            ("api/exercise/{id}", "POST", self._open), ("api/exercise/{id}/file", "PUT", self._save),
            ("api/exercise/{id}/check", "POST", self._check), ("api/exercise/{id}/hint", "POST", self._hint),
            ("api/exercise/{id}/answer", "POST", self._answer), ("api/exercise/{id}/reset", "POST", self._reset),
            ("api/exercise/{id}/solution", "POST", self._solution), ("picture/{id}", "GET", self._picture),
            ("api/files", "GET", self._list_files), ("api/file", "GET", self._open_file),
            ("api/file", "PUT", self._save_file), ("api/run", "POST", self._run),
            ("api/run/{number:int}/stop", "POST", self._stop), ("run/{number:int}", "GET", self._page_of_run),
        ]  # fmt: skip
        return Starlette(
            routes=[Route(f"/{path}", _plain_errors(answer), methods=[method]) for path, method, answer in routes],
            lifespan=self._life,
        )

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self.events.attach()
        self.checks.start()
        watching = asyncio.create_task(self._watch.run())
        yield
        watching.cancel()
        await self.commands.close()
        self.checks.close()

    def _changed(self, file: Path) -> None:
        """Tell every tab about a saved file, and check the exercise it belongs to."""
        try:
            version = content_of(file).version
        except FileError:
            return
        for exercise in self.workshop.catalogue.values():
            if self.workshop.file_of(exercise) == file:
                self.events.publish("file", exercise=exercise.id, version=version)
                last = self.checks.last.get(exercise.id)
                if last is None or last.version != version:
                    self.checks.check(exercise)
                return
        self.events.publish("file", file=self._files.name(file.resolve()), version=version)

    async def _index(self, request: Request) -> Response:
        return HTMLResponse((STATIC / "index.html").read_text(encoding="utf-8"))

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "palette.css":
            return Response(PALETTE.read_bytes(), media_type=KINDS[".css"])
        if name == STYLE.name:
            return Response(STYLE.read_bytes(), media_type=KINDS[".css"])
        file = STATIC / name
        if file.parent != STATIC or not file.is_file() or file.suffix not in KINDS:
            return PlainTextResponse("no such file", status_code=404)
        return Response(file.read_bytes(), media_type=KINDS[file.suffix])

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self.events.stream(), media_type="text/event-stream")

    async def _course(self, request: Request) -> Response:
        return JSONResponse(
            {**lessons.course(self.workshop), "class": self._class_folder is not None, "files": self._first}
        )

    async def _words(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(language.words))

    async def _class(self, request: Request) -> Response:
        if self._class_folder is None:
            return _refused("the studio was started without --class", 404)
        found = await run_in_threadpool(classroom.class_progress, self._class_folder, self.workshop.catalogue)
        return JSONResponse(found)

    def _exercise(self, request: Request) -> Exercise:
        return self.workshop.catalogue[request.path_params["id"]]

    async def _open(self, request: Request) -> Response:
        exercise = self._exercise(request)
        answered = self.workshop.answered_by_starter(exercise)
        if answered is not None and request.query_params.get("anyway") is None:
            return JSONResponse({"answers": answered.id, "title": exercise.title})
        self.workshop.start(exercise)
        if not exercise.is_only_questions:
            self._watch.add(self.workshop.file_of(exercise))
        last = self.checks.last.get(exercise.id)
        return JSONResponse(
            {**lessons.lesson(self.workshop, exercise), "checked": last.as_json() if last is not None else None}
        )

    async def _save(self, request: Request) -> Response:
        """Save the learner's file. The watch sees the save, like any other, and asks for the check."""
        exercise = self._exercise(request)
        if exercise.is_only_questions:
            return _refused(f"{exercise.id} has questions only")
        return await self._saved(self.workshop.file_of(exercise), request)

    async def _saved(self, file: Path, request: Request) -> Response:
        body = await _body(request)
        text, version = body.get("text"), body.get("version")
        if not isinstance(text, str) or not isinstance(version, str):
            return _refused("a save has a text and the version that it started from")
        try:
            content = save(file, text, version)
        except ConflictError as conflict:
            return JSONResponse({"error": str(conflict), **asdict(conflict.content)}, status_code=409)
        self._watch.add(file)
        return JSONResponse({"version": content.version})

    async def _check(self, request: Request) -> Response:
        exercise = self._exercise(request)
        self.checks.check(exercise)
        return JSONResponse({})

    async def _hint(self, request: Request) -> Response:
        exercise = self._exercise(request)
        shown = self.workshop.next_hint(exercise)
        return JSONResponse({"hints": list(exercise.hints[:shown]), "hints_there_are": len(exercise.hints)})

    async def _answer(self, request: Request) -> Response:
        exercise = self._exercise(request)
        body = await _body(request)
        question = body.get("question")
        if not isinstance(question, int) or not 1 <= question <= len(exercise.questions):
            return _refused(f"{exercise.id} has no such question")
        try:
            guess = number_in(str(body.get("guess")))
        except ValueError as error:
            return _refused(str(error))
        self.checks.answer(exercise, question, guess)
        return JSONResponse({})

    async def _reset(self, request: Request) -> Response:
        exercise = self._exercise(request)
        kept = self.workshop.reset(exercise)
        self.checks.last.pop(exercise.id, None)
        return JSONResponse({"kept": kept.name if kept else None})

    async def _solution(self, request: Request) -> Response:
        exercise = self._exercise(request)
        body = await _body(request)
        if exercise.is_only_questions:
            return _refused(f"{exercise.id} has questions only")
        if not self.workshop.may_see_solution(exercise, bool(body.get("give_up"))):
            return _refused("Try the exercise first: the solution is shown after a failed check of your own attempt.")
        return JSONResponse({"text": exercise.solution.read_text(encoding="utf-8")})

    async def _picture(self, request: Request) -> Response:
        last = self.checks.last.get(self._exercise(request).id)
        return _page(last.picture if last is not None else "")

    async def _list_files(self, request: Request) -> Response:
        return JSONResponse({"files": await run_in_threadpool(self._files.listed), "panels": PANELS})

    async def _open_file(self, request: Request) -> Response:
        file = self._files.file(request.query_params.get("name", ""))
        content = content_of(file)
        if not content.version:
            return _refused(f"{self._files.name(file)} does not exist", 404)
        self._watch.add(file)
        language = "cuda" if file.suffix == ".cu" else "python"
        return JSONResponse({"name": self._files.name(file), "language": language, **asdict(content)})

    async def _save_file(self, request: Request) -> Response:
        return await self._saved(self._files.file(request.query_params.get("name", "")), request)

    async def _run(self, request: Request) -> Response:
        body = await _body(request)
        if body.get("panel") not in PANELS:
            return _refused(f"the panels are {', '.join(PANELS)}")
        file = self._files.file(str(body.get("name", "")))
        if not file.is_file():
            return _refused(f"{self._files.name(file)} does not exist", 404)
        return JSONResponse(self.commands.start(body["panel"], file, self._files.name(file)).as_json())

    async def _stop(self, request: Request) -> Response:
        self.commands.stop(request.path_params["number"])
        return JSONResponse({})

    async def _page_of_run(self, request: Request) -> Response:
        run = self.commands.find(request.path_params["number"])
        return _page(run.page if run is not None else "")


def number_in(text: str) -> float:
    """Return a number as people write it: 1/12, 25 %, 1e6, 1,000. Raises ValueError with one sentence."""
    plain = text.strip().replace(" ", "").replace("_", "")
    scale = 0.01 if plain.endswith("%") else 1.0
    plain = plain.removesuffix("%")
    whole, _, tail = plain.rpartition(",")
    if whole and len(tail) == 3 and "." not in whole:
        plain = plain.replace(",", "")
    top, slash, bottom = plain.partition("/")
    try:
        value = (float(top) / float(bottom) if slash else float(plain)) * scale
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number; write one such as 1024, 0.5, 1/12 or 25 %")
    return value


def _plain_errors(answer: Answer) -> Answer:
    """Return the handler with one sentence for what the learner asked for and cannot have."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except (ExerciseError, FileError) as error:
            return _refused(str(error))
        except OSError as error:
            return _refused(f"{error.filename or ''}: {error.strerror or error}", 500)

    return answered


def _refused(message: str, status: int = 400) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


def _page(text: str) -> Response:
    headers = {"Content-Security-Policy": PICTURE_POLICY}
    return HTMLResponse(text, headers=headers) if text else HTMLResponse("", status_code=404, headers=headers)


async def _body(request: Request) -> dict[str, Any]:
    if int(request.headers.get("content-length") or 0) > LARGEST_BODY:
        raise FileError("the request is too large")
    try:
        content = json.loads(await request.body() or b"{}")
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise FileError("the request is not a JSON object")
    return content
