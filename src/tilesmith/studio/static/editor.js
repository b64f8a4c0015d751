// The editor: a textarea over its own highlighted text. The browser keeps undo, selection, input methods and accessibility.

import { make } from "./server.js";
import { highlight } from "./tokens.js";

const INDENT = "    ";
const MOST_SHOWN = 12;
// A longer text has neither colours nor line numbers: each key draws them anew, a millisecond for about ten lines.
const MOST_LINES = 3_000;
const MOST_CHARACTERS = 150_000;
const MOST_EDITED = 20_000; // lines: above, the browser's own text area takes half a second for each key
const PAIRS = { "(": ")", "[": "]", "{": "}" };

export class Editor {
  // `saved()` is called on Ctrl-S, `changed()` after every edit.
  constructor({ label, saved, changed }) {
    this.language = "python";
    this.words = [];
    this.marks = new Map();
    this.saved = saved;
    this.changed = changed;
    this.code = make("code");
    this.area = make("textarea", {
      "aria-label": label, spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off",
      "aria-autocomplete": "list", "aria-controls": "completions",
    });
    this.gutter = make("div", { class: "gutter" });
    this.list = make("ul", { class: "completions", id: "completions", role: "listbox", hidden: true });
    this.note = make("div", { class: "hover", role: "tooltip", hidden: true });
    this.paper = make("div", { class: "paper" }, make("pre", { "aria-hidden": "true" }, this.code), this.area, this.list, this.note);
    this.tooLong = make("p", { class: "too-long", role: "status", hidden: true });
    this.element = make("div", { class: "editor" }, this.tooLong, this.gutter, this.paper);
    this.area.addEventListener("beforeinput", (event) => this.#refuseLong(event));
    this.area.addEventListener("input", (event) => this.#input(event));
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.area.addEventListener("blur", () => setTimeout(() => this.#close(), 150));
    this.area.addEventListener("click", () => this.#close());
    this.area.addEventListener("mousemove", (event) => this.#point(event));
    this.area.addEventListener("mouseleave", () => (this.note.hidden = true));
    this.leaving = false;
  }

  get text() {
    return this.area.value;
  }

  // Replace the text, as after a change outside. The caret stays on its line.
  set text(text) {
    const [start, end] = [this.area.selectionStart, this.area.selectionEnd];
    this.area.value = text;
    this.area.setSelectionRange(Math.min(start, text.length), Math.min(end, text.length));
    this.#draw();
  }

  focus() {
    this.area.focus();
  }

  // Show messages in the margin: a map from line numbers to texts.
  mark(marks) {
    this.marks = marks;
    this.marked = this.text.split("\n");
    this.#draw();
  }

  // Keep the marks on their lines when an edit adds or removes lines above; the mark of a removed line goes with it.
  #moveMarks() {
    if (!this.marks.size) return;
    const [before, now] = [this.marked, this.text.split("\n")];
    this.marked = now;
    const more = now.length - before.length;
    if (!more) return;
    const differs = before.findIndex((line, index) => line !== now[index]);
    const first = differs < 0 ? before.length : differs;
    const kept = [...this.marks].filter(([line]) => line <= first || line > first - more);
    this.marks = new Map(kept.map(([line, message]) => [line > first ? line + more : line, message]));
  }

  nextMark() {
    const lines = [...this.marks.keys()].sort((one, other) => one - other);
    if (!lines.length) return;
    const here = this.#lineAt(this.area.selectionStart);
    this.goTo(lines.find((line) => line > here) ?? lines[0]);
  }

  goTo(line) {
    const lines = this.text.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.area.focus();
    this.area.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
    this.#reveal(line);
    this.#explain(line, 0, this.marks.get(line));
  }

  #draw() {
    const lines = this.text.split("\n");
    const isLong = lines.length > MOST_LINES || this.text.length > MOST_CHARACTERS;
    this.area.readOnly = lines.length > MOST_EDITED;
    this.tooLong.hidden = !isLong;
    this.tooLong.textContent = `${lines.length.toLocaleString("en")} lines: ` + (this.area.readOnly ? "too long to edit here, or to show colours." : "too long for colours and line numbers.");
    this.element.classList.toggle("long", isLong);
    if (isLong) {
      const widest = lines.reduce((most, line) => Math.max(most, line.length), 0);
      this.code.replaceChildren();
      this.code.style.cssText = `display: block; width: ${widest}ch; height: calc(${lines.length} * var(--row))`;
    } else {
      this.code.style.cssText = "";
      highlight(this.code, this.text + "\n", this.language);
    }
    this.#number(isLong ? 0 : lines.length);
    for (const old of this.paper.querySelectorAll(".marked")) old.remove();
    for (const line of this.marks.keys()) {
      const band = make("div", { class: "marked" });
      band.style.top = `calc(${line - 1} * var(--row))`;
      this.paper.prepend(band);
    }
  }

  // Refuse a paste that makes the text too long to edit.
  #refuseLong(event) {
    const more = (event.data ?? event.dataTransfer?.getData("text/plain") ?? "").split("\n").length - 1;
    if (!more || this.text.split("\n").length + more <= MOST_EDITED) return;
    event.preventDefault();
    this.tooLong.textContent = `Not pasted: the editor takes ${MOST_EDITED.toLocaleString("en")} lines.`;
    this.tooLong.hidden = false;
  }

  // Number this many lines in the margin, with their marks.
  #number(count) {
    while (this.gutter.children.length > count) this.gutter.lastChild.remove();
    while (this.gutter.children.length < count) {
      const line = this.gutter.children.length + 1;
      this.gutter.append(make("button", { type: "button", tabindex: "-1", onclick: () => this.marks.has(line) && this.goTo(line) }, String(line)));
    }
    for (const [index, one] of [...this.gutter.children].entries()) {
      const message = this.marks.get(index + 1);
      one.classList.toggle("error", message !== undefined);
      one.title = message ?? "";
      if (message === undefined) one.removeAttribute("aria-label");
      else one.setAttribute("aria-label", `line ${index + 1}: ${message}`);
    }
  }

  #input(event) {
    this.#moveMarks();
    this.#draw();
    this.note.hidden = true;
    this.#reveal(this.#lineAt(this.area.selectionStart));
    this.changed();
    const typed = event.inputType === "insertText" && /[\w.]/.test(event.data ?? "");
    if (typed || !this.list.hidden) this.#complete(false);
  }

  #key(event) {
    const control = event.ctrlKey || event.metaKey;
    if (!this.list.hidden && this.#keyInList(event)) return event.preventDefault();
    const was = this.leaving;
    this.leaving = event.key === "Escape";
    if (event.key === "Escape") this.#close();
    else if (control && event.key.toLowerCase() === "s") this.saved();
    else if (control && event.key === " ") this.#complete(true);
    else if (control && event.key === "/") this.#comment();
    else if (event.key === "F1") this.#explainCaret();
    else if (event.key === "F8") this.nextMark();
    else if (event.key === "Tab" && !was && !control && !event.altKey) this.#indent(event.shiftKey);
    else if (event.key === "Enter" && !control && !event.altKey) this.#newLine();
    else if (event.key === "Backspace" && this.#isIndent()) this.#replace(this.#toLastStop(), this.area.selectionEnd, "");
    else if (event.key in PAIRS && this.#mayPair()) this.#pair(event.key);
    else if (Object.values(PAIRS).includes(event.key) && this.text[this.area.selectionStart] === event.key && this.#nothingSelected()) this.#step(1);
    else return;
    event.preventDefault();
  }

  // Replace a part of the text so that the browser's undo knows it.
  #replace(start, end, text) {
    this.area.focus();
    this.area.setSelectionRange(start, end);
    if (text) document.execCommand("insertText", false, text);
    else if (end > start) document.execCommand("delete");
  }

  #nothingSelected() {
    return this.area.selectionStart === this.area.selectionEnd;
  }

  #step(by) {
    this.area.setSelectionRange(this.area.selectionStart + by, this.area.selectionStart + by);
  }

  #mayPair() {
    return this.#nothingSelected() && /^[\s)\]},:]?$/.test(this.text[this.area.selectionStart] ?? "");
  }

  #pair(open) {
    const at = this.area.selectionStart;
    this.#replace(at, at, open + PAIRS[open]);
    this.area.setSelectionRange(at + 1, at + 1);
  }

  #lineStart(at) {
    return this.text.lastIndexOf("\n", at - 1) + 1;
  }

  #lineAt(at) {
    return this.text.slice(0, at).split("\n").length;
  }

  #isIndent() {
    const at = this.area.selectionStart;
    const before = this.text.slice(this.#lineStart(at), at);
    return this.#nothingSelected() && before.length > 0 && /^ +$/.test(before);
  }

  #toLastStop() {
    const at = this.area.selectionStart;
    const column = at - this.#lineStart(at);
    return at - (column % INDENT.length || INDENT.length);
  }

  #newLine() {
    const at = this.area.selectionStart;
    const before = this.text.slice(this.#lineStart(at), at);
    const deeper = /[:({[]\s*$/.test(before) ? INDENT : "";
    this.#replace(at, this.area.selectionEnd, "\n" + before.match(/^\s*/)[0] + deeper);
  }

  // Change every selected line.
  #lines(change) {
    const start = this.#lineStart(this.area.selectionStart);
    const stop = this.area.selectionEnd;
    const next = this.text.indexOf("\n", Math.max(start, stop - (stop > this.area.selectionStart ? 1 : 0)));
    const end = next < 0 ? this.text.length : next;
    const changed = change(this.text.slice(start, end).split("\n")).join("\n");
    this.#replace(start, end, changed);
    this.area.setSelectionRange(start, start + changed.length);
  }

  #indent(back) {
    if (back) return this.#lines((lines) => lines.map((line) => line.replace(/^ {1,4}/, "")));
    const at = this.area.selectionStart;
    if (!this.#nothingSelected()) return this.#lines((lines) => lines.map((line) => (line ? INDENT + line : line)));
    const column = at - this.#lineStart(at);
    this.#replace(at, at, " ".repeat(INDENT.length - (column % INDENT.length)));
  }

  #comment() {
    const sign = this.language === "cuda" ? "//" : "#";
    this.#lines((lines) => {
      const full = lines.filter((line) => line.trim());
      const all = full.length > 0 && full.every((line) => line.trimStart().startsWith(sign));
      if (all) return lines.map((line) => line.replace(new RegExp(`^(\\s*)${sign} ?`), "$1"));
      return lines.map((line) => (line.trim() ? line.replace(/^(\s*)/, `$1${sign} `) : line));
    });
  }

  #prefix() {
    const at = this.area.selectionStart;
    const found = this.text.slice(this.#lineStart(at), at).match(/[A-Za-z_][\w.]*$/);
    return found ? found[0] : "";
  }

  #complete(asked) {
    const prefix = this.#prefix();
    const at = this.area.selectionStart;
    const others = this.text.slice(0, at - prefix.length) + " " + this.text.slice(at);
    const own = [...new Set(others.match(/[A-Za-z_]\w{2,}/g) ?? [])];
    if (!asked && (prefix.length < 2 || own.includes(prefix) || this.#completesNothing(at))) return this.#close();
    const known = new Set(this.words.map((word) => word.name));
    const all = [...this.words, ...own.filter((one) => !known.has(one)).map((name) => ({ name, signature: name, text: "" }))];
    const wanted = prefix.toLowerCase();
    const found = all.filter((word) => word.name.toLowerCase().startsWith(wanted) && word.name !== prefix);
    if (!found.length) return this.#close();
    this.shown = found.slice(0, MOST_SHOWN);
    this.picked = 0;
    this.list.replaceChildren(...this.shown.map((word, index) =>
      make("li", { role: "option", id: `completion-${index}`, onmousedown: (event) => { event.preventDefault(); this.#take(index); } }, word.name)));
    this.#place(this.list, this.#lineAt(this.area.selectionStart), this.area.selectionStart - this.#lineStart(this.area.selectionStart) - prefix.length);
    this.list.hidden = false;
    this.#pick(0);
  }

  // In a comment, and before the rest of a word, a list would only be in the way.
  #completesNothing(at) {
    const line = this.text.slice(this.#lineStart(at), at);
    return /\w/.test(this.text[at] ?? "") || line.includes(this.language === "cuda" ? "//" : "#");
  }

  #keyInList(event) {
    const count = this.shown.length;
    if (event.key === "ArrowDown") this.#pick((this.picked + 1) % count);
    else if (event.key === "ArrowUp") this.#pick((this.picked + count - 1) % count);
    else if (event.key === "Enter" || event.key === "Tab") this.#take(this.picked);
    else if (event.key === "Escape") this.#close();
    else return false;
    return true;
  }

  #pick(index) {
    this.picked = index;
    for (const [number, one] of [...this.list.children].entries()) one.setAttribute("aria-selected", String(number === index));
    this.area.setAttribute("aria-activedescendant", `completion-${index}`);
    const word = this.shown[index];
    if (!word.text && word.signature === word.name) return (this.note.hidden = true);
    this.#describe(word);
    this.note.style.top = `calc(${this.list.style.top || "0px"} + ${this.list.offsetHeight}px)`;
    this.note.style.left = this.list.style.left;
  }

  #take(index) {
    const prefix = this.#prefix();
    const at = this.area.selectionStart;
    const word = this.shown[index];
    this.#close();
    this.#replace(at - prefix.length, at, word.name);
    this.#close();
  }

  #close() {
    this.list.hidden = true;
    this.note.hidden = true;
    this.area.removeAttribute("aria-activedescendant");
  }

  #describe(word) {
    this.note.replaceChildren(make("code", {}, word.signature), word.text ? make("p", {}, word.text) : "");
    this.note.hidden = false;
  }

  #wordAt(line, column) {
    const text = this.text.split("\n")[line - 1] ?? "";
    for (const match of text.matchAll(/[A-Za-z_][\w.]*/g)) {
      if (match.index <= column && column <= match.index + match[0].length) {
        return [this.words.find((word) => word.name === match[0]), match.index];
      }
    }
    return [undefined, column];
  }

  #explainCaret() {
    const line = this.#lineAt(this.area.selectionStart);
    const column = this.area.selectionStart - this.#lineStart(this.area.selectionStart);
    const [word, start] = this.#wordAt(line, column);
    if (word) {
      this.#describe(word);
      this.#place(this.note, line, start);
    } else this.#explain(line, column, this.marks.get(line));
  }

  #explain(line, column, message) {
    if (message === undefined) return;
    this.note.replaceChildren(make("p", { class: "said" }, message));
    this.note.hidden = false;
    this.#place(this.note, line, column);
  }

  #point(event) {
    if (!this.list.hidden) return;
    const box = this.area.getBoundingClientRect();
    const [row, advance, pad] = this.#metrics();
    const line = Math.floor((event.clientY - box.top - pad) / row) + 1;
    const column = Math.floor((event.clientX - box.left - pad) / advance);
    const [word, start] = this.#wordAt(line, column);
    const text = this.text.split("\n")[line - 1];
    if (word && column < (text ?? "").length) {
      this.#describe(word);
      this.#place(this.note, line, start);
    } else if (this.marks.has(line)) this.#explain(line, 0, this.marks.get(line));
    else this.note.hidden = true;
  }

  #metrics() {
    const style = getComputedStyle(this.area);
    if (!this.advance) {
      const probe = make("span", { class: "probe" }, "0".repeat(100));
      this.paper.append(probe);
      this.advance = probe.getBoundingClientRect().width / 100;
      probe.remove();
    }
    return [parseFloat(style.lineHeight), this.advance, parseFloat(style.paddingTop)];
  }

  #place(box, line, column) {
    const [row, advance, pad] = this.#metrics();
    box.style.top = `${pad + line * row}px`;
    box.style.left = `${pad + Math.max(0, column) * advance}px`;
  }

  #reveal(line) {
    const [row, , pad] = this.#metrics();
    const top = pad + (line - 1) * row;
    const view = this.element;
    if (top < view.scrollTop + row) view.scrollTop = Math.max(0, top - row);
    if (top + 2 * row > view.scrollTop + view.clientHeight) view.scrollTop = top + 2 * row - view.clientHeight;
  }
}
