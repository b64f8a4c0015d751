// Free mode: any kernel file, with inspect, check, judge and bench as panels.

import { OpenFile } from "./draft.js";
import { Editor } from "./editor.js";
import { get, make, post, trouble } from "./server.js";

const MEANINGS = {
  inspect: "What each kernel of this script reads, writes and costs, and what to change.",
  check: "Compares the operator of the file's SPEC with its reference, with gradients.",
  judge: "Judges the file as a candidate nobody trusts: right, safe, honest.",
  bench: "Times the operator beside its rivals; without a GPU, the predicted limit.",
};

export class FreeView {
  title = "Free mode";
  keepsDraft = true;

  constructor(state, name) {
    Object.assign(this, { state, name, runs: {} });
  }

  async open() {
    const { files = [], panels = [], error } = await get("api/files");
    if (error) return [make("p", { class: "bad" }, error)];
    const list = make("ul", { class: "files" }, ...files.map((file) => make("li", {}, make("a", { href: `#free/${encodeURIComponent(file)}`, "aria-current": file === this.name ? "page" : null }, file))));
    const name = make("input", { name: "name", placeholder: "my_kernel.py", "aria-label": "Name of a new file", autocomplete: "off" });
    const fresh = make("form", { class: "row", onsubmit: (event) => { event.preventDefault(); this.#create(name.value.trim()); } }, name, make("button", {}, "New file"));
    const side = make("section", { class: "pane lesson", "aria-label": "Files", tabindex: "-1" }, make("h1", {}, "Free mode"), make("p", { class: "quiet" }, "Any kernel file of your folder. ", make("code", {}, "tilesmith studio FILE"), " opens others."), fresh, list);
    if (!this.name) return [make("div", { class: "workbench free" }, side, make("section", { class: "pane" }, make("p", { class: "quiet" }, "Choose a file.")))];
    const file = await get(`api/file?name=${encodeURIComponent(this.name)}`);
    if (file.error) return [make("div", { class: "workbench free" }, side, make("section", { class: "pane" }, make("p", { class: "bad" }, file.error)))];
    this.title = file.name;
    return [make("div", { class: "workbench free" }, side, this.#editor(file), this.#panels(panels))];
  }

  isDirty() {
    return Boolean(this.file?.isDirty);
  }

  wordsArrived() {
    if (this.editor) this.editor.words = this.state.words[this.editor.language] ?? [];
  }

  save() {
    return this.file?.save();
  }

  key(key) {
    const panel = Object.keys(MEANINGS)[Number(key) - 1];
    if (panel && this.file) this.#run(panel);
    return Boolean(panel);
  }

  heard(event) {
    if (event.kind === "file" && event.file === this.name) this.file?.changedOutside(event.version);
    if (event.kind === "run" && this.runs[event.panel] === event.number) this.#show(event);
  }

  async #create(name) {
    const full = /\.(py|cu)$/.test(name) ? name : `${name}.py`;
    const answer = await fetch(`api/file?name=${encodeURIComponent(full)}`, { method: "PUT", body: JSON.stringify({ text: "import torch\nimport triton\nimport triton.language as tl\n", version: "" }) });
    const content = await answer.json();
    if (answer.status === 409) trouble(`${full} exists already.`);
    else if (content.error) trouble(content.error);
    else location.hash = `#free/${encodeURIComponent(full)}`;
  }

  #editor(file) {
    this.editor = new Editor({ label: `Editor: ${file.name}`, saved: () => this.save(), changed: () => this.file.edited() });
    this.editor.language = file.language;
    this.wordsArrived();
    const told = make("span", { class: "told", "aria-live": "polite" });
    const conflict = make("div", { class: "conflict", role: "alert", hidden: true });
    const address = `api/file?name=${encodeURIComponent(this.name)}`;
    this.file = new OpenFile({ key: `file:${this.name}`, address, load: () => get(address), editor: this.editor, conflict, told: (text) => (told.textContent = text) });
    this.file.show(file);
    return make("section", { class: "pane code", "aria-label": "Editor" }, make("div", { class: "bar" }, make("b", {}, file.name), told, make("button", { type: "button", class: "save", title: "Ctrl-S", onclick: () => this.save() }, "Save")), conflict, this.editor.element);
  }

  #panels(panels) {
    this.places = {};
    return make("section", { class: "pane right panels", "aria-label": "Panels", tabindex: "-1" }, ...panels.map((panel, index) => {
      this.places[panel] = make("div", { class: "outcome", "aria-live": "polite" });
      return make("details", { class: `panel ${panel}`, open: index === 0 }, make("summary", {}, panel, " ", make("small", {}, `Alt-${index + 1}`)), make("p", { class: "quiet" }, MEANINGS[panel]), make("button", { type: "button", onclick: () => this.#run(panel) }, `Run ${panel}`), this.places[panel]);
    }));
  }

  async #run(panel) {
    const place = this.places[panel];
    place.closest("details").open = true;
    if (this.file.isDirty && !(await this.file.save())) return;
    const run = await post("api/run", { panel, name: this.name });
    if (run.error) return place.replaceChildren(make("p", { class: "bad" }, run.error));
    this.runs[panel] = run.number;
    place.replaceChildren(make("p", { class: "doing" }, make("span", { class: "spinner", "aria-hidden": "true" }), `${panel} runs … `, make("button", { type: "button", onclick: () => post(`api/run/${run.number}/stop`) }, "Stop")));
  }

  #show(run) {
    const place = this.places[run.panel];
    const said = { 0: ["good", "passed"], 1: ["bad", "found problems"], 130: ["quiet", "stopped"] }[run.status] ?? ["bad", `ended with status ${run.status}`];
    const address = `run/${run.number}`;
    place.replaceChildren(make("p", { class: said[0] }, `${run.panel}: ${said[1]}`), make("pre", {}, run.printed || "Nothing was printed."));
    if (run.page) place.append(make("p", {}, make("a", { href: address, target: "_blank", rel: "noopener" }, "The page alone")), make("iframe", { title: `${run.panel} of ${run.file}`, src: address, sandbox: "allow-scripts" }));
    const lines = run.printed.matchAll(new RegExp(`${this.name.split("/").pop().replace(/\W/g, "\\$&")}:(\\d+)(.*)`, "g"));
    if (run.panel === "inspect" || run.panel === "check") this.editor.mark(new Map([...lines].map((match) => [Number(match[1]), `${run.panel}: ${match[0]}`])));
  }
}
