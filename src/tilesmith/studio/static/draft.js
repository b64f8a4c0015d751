// A file in the editor: saving, drafts that survive a reload, and changes from outside.

import { ask, make } from "./server.js";

export class OpenFile {
  // `address` reads (through `load`) and saves the file; `told(text)` shows its state.
  constructor({ key, address, load, editor, told, conflict }) {
    Object.assign(this, { key: `draft:${key}`, address, load, editor, told, conflict });
    this.version = "";
    this.base = "";
  }

  get isDirty() {
    return this.editor.text !== this.base;
  }

  // Show the file, or the draft that a reload left behind.
  show({ text, version }) {
    const draft = JSON.parse(sessionStorage.getItem(this.key) ?? "null");
    this.#take(text, version);
    if (draft && draft.text !== text) {
      this.editor.text = draft.text;
      this.edited();
      if (draft.version !== version) this.#conflict({ text, version });
    }
  }

  edited() {
    const isKept = this.#keepDraft();
    this.told(!this.isDirty ? "saved" : isKept ? "not saved" : "not saved, and too long to survive a reload");
  }

  // Return whether a reload keeps the text. A browser keeps a few million characters.
  #keepDraft() {
    sessionStorage.removeItem(this.key);
    if (!this.isDirty) return true;
    try {
      sessionStorage.setItem(this.key, JSON.stringify({ text: this.editor.text, version: this.version }));
    } catch {
      return false;
    }
    return true;
  }

  // Save the text. Return whether the file now holds it.
  async save() {
    const text = this.editor.text;
    this.told("saving …");
    let answer;
    try {
      answer = await ask("PUT", this.address, { text, version: this.version });
    } catch {
      this.told("not saved: the server does not answer");
      return false;
    }
    if (answer.status === 409) {
      this.#conflict(answer);
      return false;
    }
    if (answer.error) {
      this.told(`not saved: ${answer.error}`);
      return false;
    }
    this.version = answer.version;
    this.base = text;
    this.conflict.hidden = true;
    this.edited();
    return true;
  }

  // The file on disk has this version now.
  async changedOutside(version) {
    if (version === this.version) return;
    const now = await this.load();
    if (now.error || now.version === this.version) return;
    if (now.text === this.editor.text) this.#take(now.text, now.version);
    else if (this.isDirty) this.#conflict(now);
    else {
      this.#take(now.text, now.version);
      this.told("changed outside, and loaded");
    }
  }

  #take(text, version) {
    this.editor.text = text;
    this.version = version;
    this.base = text;
    this.conflict.hidden = true;
    sessionStorage.removeItem(this.key);
    this.told("saved");
  }

  #conflict(now) {
    this.told("not saved: the file changed outside");
    this.conflict.replaceChildren(
      make("p", {}, "The file was changed outside this tab, and you have changes here."),
      make("button", { type: "button", class: "theirs", onclick: () => { this.#take(now.text, now.version); this.editor.changed(); } }, "Take the file"),
      make("button", { type: "button", class: "mine", onclick: () => { this.version = now.version; this.save(); } }, "Keep mine"),
      make("details", {}, make("summary", {}, "Show the file"), make("pre", {}, now.text)));
    this.conflict.hidden = false;
  }
}
