// The studio's shell: which view is open, the server's events, and the keys that work everywhere.

import { ClassView } from "./class.js";
import { FreeView } from "./free.js";
import { LessonView } from "./lesson.js";
import { MapView } from "./map.js";
import { get, listen, make, trouble } from "./server.js";

const state = { course: null, words: { python: [], cuda: [] }, view: null, wasConnected: false };
const place = document.getElementById("view");
const VIEWS = { map: MapView, exercise: LessonView, free: FreeView, class: ClassView };

export async function refreshCourse() {
  const course = await get("api/course");
  if (course.error) return trouble(course.error);
  state.course = course;
  const all = Object.values(course.tracks).flat();
  document.getElementById("progress").textContent = `${course.solved} of ${all.length} solved`;
  document.querySelector('[data-view="class"]').hidden = !course.class;
  return course;
}

// Return the view and the name in the address. Text that cannot be decoded stays as it is, and names nothing.
function asked() {
  let text = location.hash.slice(1);
  try {
    text = decodeURIComponent(text);
  } catch {}
  const [kind, ...rest] = text.split("/");
  return [Object.hasOwn(VIEWS, kind) ? kind : "map", rest.join("/")];
}

async function open() {
  const [name, subject] = asked();
  state.view?.close?.();
  state.view = null;
  place.replaceChildren(make("p", { class: "quiet" }, "Loading …"));
  place.className = name;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = new VIEWS[name](state, subject, refreshCourse);
  state.view = view;
  const content = await view.open();
  if (state.view !== view) return;
  place.replaceChildren(...content);
  document.title = `${view.title} · Tilesmith studio`;
  view.shown?.();
}

function heard(event) {
  if (event.kind === "trouble") trouble(event.message);
  if (event.kind === "verdict" || event.kind === "reply") refreshCourse();
  state.view?.heard?.(event);
}

function connected(is) {
  trouble(is ? "" : "The studio's server does not answer. Your text stays in this tab; start the studio again to save it.");
  if (is && state.wasConnected) state.view?.reconnected?.();
  state.wasConnected = is || state.wasConnected;
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") {
    event.preventDefault();
    if (!event.target.closest?.(".editor")) state.view?.save?.();
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const key = event.code.replace(/^(Key|Digit)/, "").toLowerCase();
  if (key === "m") location.hash = "#map";
  else if (!state.view?.key?.(key)) return;
  event.preventDefault();
});

const help = document.getElementById("help");
document.getElementById("keys").addEventListener("click", () => help.showModal());
window.addEventListener("hashchange", open);
window.addEventListener("beforeunload", (event) => state.view?.isDirty?.() && !state.view.keepsDraft && event.preventDefault());

await refreshCourse();
listen(heard, connected);
get("api/words").then((words) => {
  state.words = words.python ? words : state.words;
  state.view?.wordsArrived?.();
});
if (!location.hash && state.course?.files.length) location.hash = `#free/${encodeURIComponent(state.course.files[0])}`;
else open();
