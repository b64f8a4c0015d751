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
      const word = course.current ? "Go on with" : "Begin with";
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

// A ladder as a chart: one rung above the other, the height reached in colour.
export function ladder(name, rungs, here = "") {
  const svg = (kind, attributes, ...children) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    one.append(...children);
    return one;
  };
  const [width, row] = [340, 34];
  const height = rungs.length * row + 8;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "ladder", role: "img", "aria-label": `${name}: ${rungs.filter((one) => one.state === "solved").length} of ${rungs.length} rungs solved` });
  for (const x of [14, 46]) picture.append(svg("line", { x1: x, x2: x, y1: 2, y2: height - 2, class: "rail" }));
  rungs.forEach((one, index) => {
    const y = height - 4 - (index + 0.5) * row;
    const text = svg("text", { x: 60, y: y + 4 }, one.title.replace(/^.*: /, ""));
    const link = svg("a", { href: `#exercise/${one.id}`, class: `${one.state}${one.id === here ? " here" : ""}` },
      svg("line", { x1: 14, x2: 46, y1: y, y2: y, class: "rung" }), text);
    picture.append(link);
  });
  return make("section", { class: "track" }, make("h2", {}, `Ladder: ${name}`), picture);
}
