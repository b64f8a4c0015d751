// The class: read-only progress of a room, from reports that learners handed in.

import { get, make } from "./server.js";

const MARKS = { solved: "✓", attempted: "~", open: "" };

export class ClassView {
  title = "Class";

  async open() {
    const found = await get("api/class");
    if (found.error) return [make("p", { class: "bad" }, found.error)];
    this.found = found;
    const used = found.exercises.filter((one) => found.learners.some((learner) => learner.exercises[one.id]));
    const parts = [
      make("h1", {}, "The class"),
      make("p", { class: "quiet" }, `${found.learners.length} reports in ${found.folder}. Learners write one with `, make("code", {}, "tilesmith learn export --learner NAME"), " and hand in the .json file. Nothing here changes their files."),
    ];
    if (used.length) parts.push(this.#summary(used), this.#table(used));
    this.detail = make("section", { class: "detail", "aria-live": "polite", tabindex: "-1" });
    parts.push(this.detail);
    if (found.refused.length) parts.push(make("h2", {}, "Files that are no report"), make("ul", {}, ...found.refused.map((one) => make("li", {}, `${one.file}: ${one.reason}`))));
    parts.push(make("p", {}, make("button", { type: "button", onclick: async () => document.getElementById("view").replaceChildren(...(await this.open())) }, "Read the folder again")));
    return [make("div", { class: "page wide" }, ...parts)];
  }

  // Where the class is stuck: exercises with most failed checks for each solution.
  #summary(used) {
    const rows = used.map((one) => {
      const tried = this.found.learners.map((learner) => learner.exercises[one.id]).filter(Boolean);
      const failures = tried.flatMap((each) => each.failed_stages);
      const common = [...new Set(failures)].sort((a, b) => failures.filter((f) => f === b).length - failures.filter((f) => f === a).length)[0];
      return { one, tried: tried.length, solved: tried.filter((each) => each.state === "solved").length, failed: failures.length, common };
    }).filter((row) => row.failed).sort((a, b) => b.failed / b.tried - a.failed / a.tried).slice(0, 5);
    if (!rows.length) return "";
    return make("section", {}, make("h2", {}, "Where the class is stuck"), make("table", {}, make("thead", {}, make("tr", {}, ...["exercise", "tried", "solved", "failed checks", "mostly at"].map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...rows.map((row) => make("tr", {}, make("td", {}, row.one.title), make("td", {}, String(row.tried)), make("td", {}, String(row.solved)), make("td", {}, String(row.failed)), make("td", {}, row.common))))));
  }

  #table(used) {
    const head = make("tr", {}, make("th", { scope: "col" }, "learner"), make("th", { scope: "col" }, "solved"), ...used.map((one) => make("th", { scope: "col", class: "turned" }, make("span", {}, one.id))));
    const rows = this.found.learners.map((learner) => make("tr", {}, make("th", { scope: "row" }, learner.learner), make("td", {}, `${learner.solved} of ${learner.of}`), ...used.map((one) => this.#cell(learner, one))));
    return make("section", {}, make("h2", {}, "Everyone"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Progress of everyone" }, make("table", { class: "everyone" }, make("thead", {}, head), make("tbody", {}, ...rows))));
  }

  #cell(learner, one) {
    const found = learner.exercises[one.id];
    if (!found) return make("td", {});
    const said = `${learner.learner}, ${one.id}: ${found.state}, ${found.checks} checks`;
    return make("td", { class: found.state }, make("button", { type: "button", title: said, "aria-label": said, onclick: () => this.#show(learner, one, found) }, MARKS[found.state]));
  }

  #show(learner, one, found) {
    const failed = found.failed_stages.length ? `failed at ${found.failed_stages.join(", ")}` : "no failed check";
    this.detail.replaceChildren(make("h2", {}, `${learner.learner}: ${one.title}`), make("p", {}, `${found.state}${found.gave_up ? ", saw the solution" : ""}; ${found.checks} checks, ${failed}; ${found.hints} hints; ${found.answered} of ${one.questions} questions right.`), found.source ? make("pre", {}, found.source) : "");
    this.detail.focus();
  }
}
