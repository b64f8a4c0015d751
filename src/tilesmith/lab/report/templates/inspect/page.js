// Builds the views of each kernel and shows one kernel at a time.

const sections = [...document.querySelectorAll("section.kernel")];
const views = new Map();

function kernelView(section) {
  const kernel = DATA.kernels[Number(section.dataset.kernel)];
  const part = (name) => section.querySelector(`.view.${name}`);
  const source = section.querySelector(".source");
  let picked = 0;

  // Only some programs have addresses and operations; the nearest of them represents the others, with a note.
  function inFull() {
    const kept = [...kernel.traced.keys()].filter((number) => kernel.traced[number].accesses || kernel.traced[number].operations);
    const nearest = kept.reduce((best, one) => (Math.abs(one - picked) < Math.abs(best - picked) ? one : best), kept[0]);
    return kernel.traced[nearest ?? picked];
  }

  function jump(line) {
    const row = document.getElementById(`${section.id}-line-${line}`);
    source.querySelectorAll("tr.picked").forEach((old) => old.classList.remove("picked"));
    if (!row) return;
    row.classList.add("picked");
    const frame = source.querySelector(".code");
    frame.scrollTop = row.offsetTop - frame.clientHeight / 2;
    const cost = row.querySelector(".heat").title;
    source.querySelector(".said").textContent = cost ? `Line ${line}: ${cost}` : `Line ${line}`;
  }

  function pick(number) {
    picked = number;
    const program = inFull();
    output(picked);
    access.show(program);
    flow(program);
    timeline(program);
    play(program);
    if (program === kernel.traced[picked]) return;
    const note = ` The views below show program (${program.id.join(", ")}), the nearest one with all details.`;
    part("output").querySelector(".said").append(note);
  }

  function draw() {
    if (kernel.traced.length) pick(picked);
    else part("output").querySelector(".said").textContent = "No program was traced to its end.";
  }

  const output = outputView(part("output"), kernel, pick);
  const access = accessView(part("access"), kernel, jump);
  const flow = flowView(part("flow"), kernel, jump);
  const timeline = timelineView(part("timeline"), kernel, jump);
  const play = playView(part("play"), kernel, source);

  section.querySelectorAll("button.pick").forEach((button) => button.addEventListener("click", () => {
    const found = kernel.traced.findIndex((program) => program.id.join(",") === button.dataset.program);
    if (found < 0) return;
    pick(found);
    part("output").scrollIntoView();
  }));
  source.querySelectorAll("tr.costs").forEach((row) => row.addEventListener("click", () => {
    const line = Number(row.querySelector("[data-line]").dataset.line);
    jump(line);
    access.chooseLine(line);
  }));
  return { draw, jump };
}

function show(section) {
  sections.forEach((one) => (one.hidden = one !== section));
  document.querySelectorAll("nav.kernels a").forEach((link) => {
    if (link.hash === `#${section.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  });
  if (!views.has(section)) views.set(section, kernelView(section));
  views.get(section).draw();
}

// Follow links inside the page here: in a notebook's iframe the browser would leave the page.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  const target = link && document.getElementById(link.hash.slice(1));
  if (!target) return;
  event.preventDefault();
  const section = target.closest("section.kernel");
  if (section && section.hidden) show(section);
  const line = /-line-(\d+)$/.exec(target.id);
  if (line) views.get(section).jump(Number(line[1]));
  if (line && !link.dataset.line) section.querySelector(".source").scrollIntoView({ block: "nearest" });
  if (section === target) target.querySelector("h2").focus({ preventScroll: true });
  else if (!line) target.scrollIntoView();
});

const redraw = () => sections.filter((section) => !section.hidden && views.has(section)).forEach((section) => views.get(section).draw());
let waiting = 0;
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return; // a phone's address bar appears and disappears
  width = window.innerWidth;
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(redraw);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
if (sections.length) show(sections.find((section) => `#${section.id}` === location.hash) || sections[0]);
