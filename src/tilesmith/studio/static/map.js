// The map of the course: tracks, progress, needs, times and difficulty; and the ladders as charts.

import { make } from "./server.js";

const MARKS = { solved: "✓", attempted: "~", open: "" };
const DIFFICULTIES = ["", "easy", "medium", "hard"];

export class MapView {
  title = "Course";

  constructor(state, name, refresh) {
    this.state = state;
    this.refresh = refresh;
  }

  async open() {
    const course = (await this.refresh()) ?? this.state.course;
    const all = Object.values(course.tracks).flat();
    this.titles = new Map(all.map((one) => [one.id, one.title]));
    const parts = [make("h1", {}, "From PyTorch to GPU kernels")];
    const begun = course.current ?? course.next;
    if (begun) {
      const word = course.current || course.solved ? "Go on with" : "Begin with";
      parts.push(make("p", { class: "start" }, make("a", { class: "button", href: `#exercise/${begun}` }, `${word} “${this.titles.get(begun)}”`)));
    }
    parts.push(make("p", { class: "quiet" }, `Your files are in ${course.folder}. Any editor may change them; the studio sees every save.`));
    parts.push(meter(course.solved, all.length, "of the course solved"));
    for (const [track, exercises] of Object.entries(course.tracks)) parts.push(this.#track(track, exercises, course.next));
    parts.push(...Object.entries(course.ladders).map(([name, rungs]) => ladder(name, rungs)));
    return [make("div", { class: "page" }, ...parts)];
  }

  heard(event) {
    if (event.kind !== "verdict") return;
    this.open().then((content) => document.getElementById("view").replaceChildren(...content));
  }

  #track(track, exercises, next) {
    const solved = exercises.filter((one) => one.state === "solved").length;
    const minutes = exercises.reduce((sum, one) => sum + one.minutes, 0);
    return make("section", { class: "track" },
      make("h2", {}, track, make("small", {}, ` ${solved} of ${exercises.length}${minutes ? ` · about ${duration(minutes)}` : ""}`)),
      make("ol", { class: "cards" }, ...exercises.map((one) => make("li", {}, this.#card(one, one.id === next)))));
  }

  #card(one, isNext) {
    const facts = [
      one.minutes ? `about ${duration(one.minutes)}` : "",
      DIFFICULTIES[one.difficulty],
      one.questions ? `${one.answered} of ${one.questions} questions` : "",
    ].filter(Boolean);
    const unmet = one.unmet.map((id) => this.titles.get(id));
    return make("a", { class: `card ${one.state}${unmet.length ? " early" : ""}`, href: `#exercise/${one.id}` },
      make("span", { class: "mark", "aria-label": one.state }, MARKS[one.state]),
      make("b", {}, one.title),
      make("small", {}, facts.join(" · ")),
      unmet.length ? make("small", { class: "needs" }, `after ${unmet.join(", ")}`) : null,
      isNext ? make("small", { class: "next" }, "next") : null);
  }
}

function meter(value, most, label) {
  return make("p", { class: "meter" }, make("progress", { value, max: most, "aria-label": label }), ` ${value} of ${most} solved`);
}

export function duration(minutes) {
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 30) / 2;
  return `${hours} h`;
}

const FIGURES = {
  sector_efficiency: ["moved bytes used", (value) => `${Math.round(100 * value)} %`],
  loads_per_element: ["loads per element", (value) => `${Number(value.toPrecision(3))}`],
  vector_bytes: ["bytes per instruction", (value) => `${value}`],
  bank_conflicts: ["bank conflicts", (value) => `${value}`],
};

// A ladder as a chart: the first rung at the bottom, and for each solved rung the figures of the learner's own kernel.
export function ladder(name, rungs, here = "") {
  const most = Object.fromEntries(Object.keys(FIGURES).map((key) => [key, Math.max(0, ...rungs.map((rung) => rung.figures[key] ?? 0))]));
  const shown = Object.keys(FIGURES).filter((key) => most[key] > 0);
  const rows = [...rungs].reverse().map((rung) => make("tr", { class: `${rung.state}${rung.id === here ? " here" : ""}` },
    make("td", { class: "rung", "aria-label": rung.state }),
    make("th", { scope: "row" }, make("a", { href: `#exercise/${rung.id}` }, rung.title.replace(/^.*: /, ""))),
    ...shown.map((key) => bar(rung.figures[key], most[key], FIGURES[key][1]))));
  const head = make("tr", {}, make("td"), make("th", { scope: "col" }, "rung"), ...shown.map((key) => make("th", { scope: "col" }, FIGURES[key][0])));
  const solved = rungs.filter((rung) => rung.state === "solved").length;
  return make("section", { class: "track" }, make("h2", {}, `Ladder: ${name}`, make("small", {}, ` ${solved} of ${rungs.length} rungs`)),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ladder ${name}` }, make("table", { class: "ladder" }, make("thead", {}, head), make("tbody", {}, ...rows))));
}

function bar(value, most, format) {
  if (value === undefined) return make("td", { class: "quiet" }, "–");
  const length = make("i");
  length.style.width = `${Math.max(2, (60 * value) / most)}px`;
  return make("td", {}, length, format(value));
}
