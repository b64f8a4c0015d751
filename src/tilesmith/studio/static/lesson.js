// One exercise: lesson, editor, checks and picture side by side.

import { OpenFile } from "./draft.js";
import { Editor } from "./editor.js";
import { duration, ladder } from "./map.js";
import { ask, make, post, trouble } from "./server.js";
import { highlight } from "./tokens.js";

const DOING = { waiting: "waiting for the worker", parses: "reading your file", compiles: "compiling for NVIDIA and AMD", runs: "running", right: "comparing with PyTorch", goals: "measuring", nvcc: "compiling with nvcc", speed: "timing" };
const PANES = ["lesson", "code", "checks", "picture"];
const DIFFICULTIES = ["", "easy", "medium", "hard"];

export class LessonView {
  keepsDraft = true;

  constructor(state, id, refresh) {
    Object.assign(this, { state, id, refresh });
    this.path = `api/exercise/${encodeURIComponent(id)}`;
    this.title = id;
    this.checked = null;
  }

  async open(anyway = "") {
    const course = this.state.course;
    if (course && !Object.values(course.tracks).flat().some((one) => one.id === this.id)) {
      return [make("p", { class: "bad" }, `No exercise is called “${this.id}”. `, make("a", { href: "#map" }, "See all exercises"))];
    }
    const lesson = await post(this.path + anyway);
    if (lesson.error) return [make("p", { class: "bad" }, lesson.error)];
    if (lesson.answers) return this.#asksFirst(lesson);
    this.lesson = lesson;
    this.title = lesson.title;
    this.panes = {
      lesson: make("section", { class: "pane lesson", "aria-label": "Lesson", tabindex: "-1" }, ...this.#text()),
      checks: make("section", { class: "pane checks", "aria-label": "Checks", tabindex: "-1" }),
    };
    this.checks = make("div", { class: "verdict", "aria-live": "polite" });
    this.panes.checks.append(make("h2", {}, "Checks"), this.checks);
    const parts = [this.#tabs(), this.panes.lesson];
    if (lesson.file) {
      this.panes.picture = make("section", { class: "pane picture", "aria-label": "Picture of your kernel", tabindex: "-1" });
      parts.push(this.#editor(), make("div", { class: "right" }, this.panes.checks, this.panes.picture));
    } else parts.push(this.panes.checks);
    this.#showChecked(lesson.checked);
    return [make("div", { class: `workbench${lesson.file ? "" : " questions"}` }, ...parts)];
  }

  // The starter is the answer to another exercise, which is not solved yet.
  #asksFirst(lesson) {
    this.title = lesson.title;
    const start = async () => {
      const content = await this.open("?anyway");
      if (this.closed) return;
      document.getElementById("view").replaceChildren(...content);
      this.shown();
    };
    return [make("section", { class: "asks", "aria-label": "Before you start" },
      make("h1", {}, lesson.title),
      make("p", {}, "This exercise begins with the answer to ", make("a", { href: `#exercise/${lesson.answers}` }, lesson.answers), ", which you have not solved yet."),
      make("button", { type: "button", onclick: start }, "Start anyway"))];
  }

  shown() {
    this.#pane("lesson");
  }

  close() {
    this.closed = true;
  }

  isDirty() {
    return Boolean(this.file?.isDirty);
  }

  wordsArrived() {
    if (this.editor) this.editor.words = this.state.words[this.lesson.language] ?? [];
  }

  key(key) {
    if (PANES[Number(key) - 1]) this.#focusPane(PANES[Number(key) - 1]);
    else if (key === "h") this.#hint();
    else if (key === "n" && this.lesson?.following) location.hash = `#exercise/${this.lesson.following}`;
    else if (key === "p" && this.lesson?.previous) location.hash = `#exercise/${this.lesson.previous}`;
    else return false;
    return true;
  }

  // Save and check. An unchanged file is checked again.
  async save() {
    if (!this.lesson) return;
    if (!this.file) return post(`${this.path}/check`);
    const changed = this.file.isDirty;
    if (!(await this.file.save())) return;
    if (!changed) await post(`${this.path}/check`);
  }

  heard(event) {
    if (event.exercise !== this.id || !this.lesson) return;
    if (event.kind === "stage") this.#showStage(event.stage);
    if (event.kind === "file") this.file?.changedOutside(event.version);
    if (event.kind === "reply") this.#showReply(event);
    if (event.kind === "verdict" && event.trouble) this.checks.replaceChildren(make("p", { class: "bad" }, event.trouble));
    else if (event.kind === "verdict") this.#showChecked(event.checked);
  }

  // After the server was gone: the file may have changed meanwhile.
  async reconnected() {
    const now = await post(this.path);
    if (now.error) return;
    this.file?.changedOutside(now.version);
    if (now.checked) this.#showChecked(now.checked);
  }

  #tabs() {
    const names = { lesson: "Lesson", code: "Editor", checks: "Checks", picture: "Picture" };
    const there = this.lesson.file ? PANES : ["lesson", "checks"];
    return make("div", { class: "tabs", role: "group", "aria-label": "Panes" }, ...there.map((pane) =>
      make("button", { type: "button", "data-pane": pane, onclick: () => this.#pane(pane) }, names[pane])));
  }

  #pane(name) {
    document.querySelector(".workbench")?.setAttribute("data-pane", name);
    for (const tab of document.querySelectorAll(".tabs button")) tab.setAttribute("aria-pressed", String(tab.dataset.pane === name));
  }

  #focusPane(name) {
    this.#pane(name);
    if (name === "code") this.editor?.focus();
    else this.panes?.[name]?.focus();
  }

  #text() {
    const one = this.lesson;
    const facts = [one.track, one.minutes ? `about ${duration(one.minutes)}` : "", DIFFICULTIES[one.difficulty]].filter(Boolean);
    const body = make("div", { class: "prose" });
    body.innerHTML = one.html; // rendered by the server from the exercise's page, without markup of its own
    for (const code of body.querySelectorAll("pre > code")) this.#dress(code);
    const parts = [make("p", { class: "quiet" }, facts.join(" · ")), make("h1", {}, one.title)];
    if (one.unmet.length) {
      const needs = one.unmet.flatMap((id, index) => [index ? ", " : "", make("a", { href: `#exercise/${id}` }, id)]);
      parts.push(make("p", { class: "needs" }, "This exercise builds on ", ...needs, ", which you have not solved yet."));
    }
    parts.push(body);
    if (one.hints_there_are) {
      this.hints = make("ol", { class: "hints" });
      this.hintButton = make("button", { type: "button", class: "hint", onclick: () => this.#hint() });
      parts.push(make("h2", {}, "Hints"), this.hints, this.hintButton);
      this.#showHints(one.hints);
    }
    if (one.quiz.length) parts.push(make("h2", {}, "Questions"), make("p", { class: "quiet" }, "Guess first. The answers are counted in your kernel once it is solved, and in the model solution before."), ...one.quiz.map((asked, index) => this.#question(asked, index + 1)));
    const rungs = Object.entries(this.state.course?.ladders ?? {}).find(([, all]) => all.some((rung) => rung.id === one.id));
    if (rungs) parts.push(ladder(rungs[0], rungs[1], one.id));
    const links = [one.previous && make("a", { href: `#exercise/${one.previous}`, rel: "prev" }, `← ${one.previous}`), one.following && make("a", { href: `#exercise/${one.following}`, rel: "next" }, `${one.following} →`)];
    parts.push(make("nav", { class: "neighbours", "aria-label": "Course" }, ...links.filter(Boolean)));
    return parts;
  }

  // Highlight a listing and add a button that copies it.
  #dress(code) {
    const text = code.textContent;
    if (code.className === "language-python") highlight(code, text, "python");
    if (/^language-(cuda|cpp|c)$/.test(code.className)) highlight(code, text, "cuda");
    const copy = make("button", { type: "button", class: "copy", onclick: async () => { await navigator.clipboard?.writeText(text); copy.textContent = "Copied"; } }, "Copy");
    code.parentElement.append(copy);
  }

  #question(asked, number) {
    const reply = make("output", { class: asked.right ? "good" : "" }, asked.right ? "Answered." : "");
    const input = make("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": `Answer to question ${number}`, name: "guess" });
    return make("form", { class: "question", "data-question": number, onsubmit: async (event) => {
      event.preventDefault();
      reply.className = "quiet";
      reply.textContent = "counting …";
      const answer = await post(`${this.path}/answer`, { question: number, guess: input.value });
      if (answer.error) [reply.className, reply.textContent] = ["bad", answer.error];
    } }, make("p", {}, `${number}. ${asked.question}`), make("div", { class: "row" }, input, make("button", {}, "Answer")), reply);
  }

  #showReply({ question, right, text }) {
    const reply = document.querySelector(`[data-question="${question}"] output`);
    if (!reply) return;
    reply.className = right ? "good" : "bad";
    reply.textContent = text;
  }

  async #hint() {
    const answer = await post(`${this.path}/hint`);
    if (answer.error) return trouble(answer.error);
    this.#showHints(answer.hints);
    this.hints?.lastElementChild?.scrollIntoView({ block: "nearest" });
  }

  #showHints(hints) {
    if (!this.hints) return;
    const most = this.lesson.hints_there_are;
    this.hints.replaceChildren(...hints.map((hint) => make("li", {}, hint)));
    this.hintButton.textContent = hints.length < most ? `Show a hint (${hints.length} of ${most} shown)` : "All hints are shown";
    this.hintButton.disabled = hints.length >= most;
  }

  #editor() {
    const lesson = this.lesson;
    this.editor = new Editor({ label: `Editor: ${lesson.file.split("/").pop()}`, saved: () => this.save(), changed: () => this.file.edited() });
    this.editor.language = lesson.language;
    this.wordsArrived();
    const told = make("span", { class: "told", "aria-live": "polite" });
    const conflict = make("div", { class: "conflict", role: "alert", hidden: true });
    this.file = new OpenFile({ key: lesson.id, address: `${this.path}/file`, load: () => post(this.path), editor: this.editor, conflict, told: (text) => (told.textContent = text) });
    this.file.show(lesson);
    const button = (name, text, act, title) => make("button", { type: "button", class: name, title, onclick: act }, text);
    return make("section", { class: "pane code", "aria-label": "Editor" },
      make("div", { class: "bar" }, make("b", { title: lesson.file }, lesson.file.split("/").pop()), told,
        button("save", "Save and check", () => this.save(), "Ctrl-S"), button("solution", "Solution", () => this.#solution()), button("reset", "Reset", () => this.#reset())),
      conflict, this.editor.element);
  }

  async #reset() {
    if (!confirm("Restore the starter? Your work is kept in a file beside it.")) return;
    const answer = await post(`${this.path}/reset`);
    if (answer.error) return trouble(answer.error);
    const now = await post(this.path);
    sessionStorage.removeItem(`draft:${this.id}`);
    this.file.show(now);
    this.#showChecked(null);
    if (answer.kept) trouble(`Your work is in ${answer.kept}.`);
  }

  async #solution() {
    let answer = await post(`${this.path}/solution`);
    if (answer.error && confirm(`${answer.error}\n\nShow it anyway?`)) answer = await post(`${this.path}/solution`, { give_up: true });
    if (answer.error) return;
    const code = make("code");
    highlight(code, answer.text, this.lesson.language);
    const dialog = make("dialog", { class: "listing", "aria-label": "The model solution" }, make("h2", {}, "The model solution"), make("pre", {}, code), make("form", { method: "dialog" }, make("button", {}, "Close")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  #showStage(stage) {
    this.panes.checks.classList.add("busy");
    this.checks.querySelector(".doing")?.remove();
    this.checks.prepend(make("p", { class: "doing" }, make("span", { class: "spinner", "aria-hidden": "true" }), `${DOING[stage] ?? stage} …`));
  }

  #showChecked(checked) {
    this.checked = checked;
    this.panes.checks.classList.remove("busy");
    const lesson = this.lesson;
    if (!checked) {
      this.checks.replaceChildren(make("p", { class: "quiet" }, lesson.file ? "Save with Ctrl-S: the check runs by itself." : "Answer the questions of the lesson."), ...this.#goals([]));
      this.#showPicture();
      return;
    }
    const parts = [];
    if (checked.passed) {
      const next = this.lesson.following;
      parts.push(make("p", { class: "solved" }, "Solved", make("small", {}, ` in ${checked.seconds} s`)));
      if (next) parts.push(make("p", {}, make("a", { class: "button", href: `#exercise/${next}` }, "Next exercise")));
    }
    if (lesson.stages.length) {
      const reached = checked.stages.length;
      const all = [...new Set([...lesson.stages, ...checked.stages])];
      parts.push(make("ol", { class: "stages" }, ...all.map((stage, index) => {
        const kind = index >= reached ? "todo" : index === reached - 1 && !checked.passed ? "failed" : "passed";
        return make("li", { class: kind }, make("span", { "aria-label": kind }, { todo: "·", failed: "✗", passed: "✓" }[kind]), ` ${stage}`);
      })));
    }
    if (!checked.passed) parts.push(make("pre", { class: "message" }, checked.message), make("p", { class: "quiet" }, `${checked.seconds} s. Stuck? Alt-H shows a hint.`));
    parts.push(...this.#goals(checked.goals));
    if (checked.table.length) parts.push(this.#table(checked.table));
    parts.push(...checked.speed.map((line) => make("p", {}, line)));
    if (checked.printed.trim()) parts.push(make("details", { open: true }, make("summary", {}, "Your file printed"), make("pre", {}, checked.printed)));
    this.checks.replaceChildren(...parts);
    this.editor?.mark(new Map(checked.lines.map((line) => [line, checked.message])));
    this.#showPicture();
  }

  // The goals, each beside what was measured.
  #goals(measured) {
    if (!this.lesson.goals.length) return [];
    const rows = this.lesson.goals.map((goal, index) => {
      const found = measured[index];
      return make("tr", { title: goal.why }, make("td", {}, goal.name), make("td", {}, goal.wanted), make("td", { class: found ? (found.met ? "good" : "bad") : "quiet" }, found ? `${Number(found.value.toPrecision(4))} ${found.met ? "✓" : "✗"}` : "–"));
    });
    return [make("table", { class: "goals" }, make("thead", {}, make("tr", {}, ...["goal", "wanted", "measured"].map((one) => make("th", { scope: "col" }, one)))), make("tbody", {}, ...rows))];
  }

  #table(rows) {
    const line = (cells, kind) => make("tr", {}, ...cells.map((cell) => make(kind, {}, cell)));
    return make("table", {}, make("thead", {}, line(rows[0], "th")), make("tbody", {}, ...rows.slice(1).map((row) => line(row, "td"))));
  }

  #showPicture() {
    const pane = this.panes.picture;
    if (!pane) return;
    const checked = this.checked;
    if (!checked?.picture) {
      pane.replaceChildren(make("h2", {}, "Picture"), make("p", { class: "quiet" }, "The picture of your own kernel appears here once a check has run it."));
      return;
    }
    const address = `picture/${encodeURIComponent(this.id)}?version=${checked.version}`;
    pane.replaceChildren(make("h2", {}, "Picture ", make("a", { href: address, target: "_blank", rel: "noopener" }, "alone")), make("iframe", { title: "Your kernel on the exercise's inputs", src: `${address}#kernel-1`, sandbox: "allow-scripts" }));
  }
}
