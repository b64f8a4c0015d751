// View 9: the statements of programs, one after another, with what registers and shared memory hold.

function playView(root, kernel, source) {
  const chips = root.querySelector(".chips");
  const slider = root.querySelector("input");
  const shown = root.querySelector("output");
  const stage = root.querySelector(".stage");
  const said = root.querySelector(".said");
  const playable = kernel.traced.filter((program) => program.steps?.length);
  let chosen = [];
  let step = 0;
  let asked = null; // the program of the other views

  const nameOf = (program) => `(${program.id.join(", ")})`;
  const last = () => Math.max(...chosen.map((program) => program.steps.length)) - 1;
  const at = (program) => Math.min(step, program.steps.length - 1);

  // The variables after a step: the latest of each name, and whether a later statement reads it.
  function variablesAt(program, number) {
    const held = new Map();
    for (let one = 0; one <= number; one++) {
      const { changed, dead } = program.steps[one];
      for (const variable of changed) {
        held.delete(variable.name);
        held.set(variable.name, { ...variable, since: one, alive: true });
      }
      for (const name of dead) if (held.has(name)) held.get(name).alive = false;
    }
    return [...held.values()].filter((variable) => variable.alive || variable.since === number).reverse();
  }

  // Registers of each thread that a tile takes when all threads share it; at least one.
  function registersOf(variable) {
    if (variable.memory !== "registers" || !kernel.resources) return null;
    const bits = Math.max(variable.bits, 8) * count(variable.shape);
    return Math.max(1, Math.ceil(bits / 32 / kernel.resources.threads));
  }

  function typeOf({ memory, format, shape }) {
    if (memory === "constant") return "compile time";
    return `${format}${shape.length ? ` [${shape.join(", ")}]` : ""}`;
  }

  function valuesOf(variable) {
    const size = count(variable.shape);
    const kept = variable.rows.reduce((total, row) => total + row.length, 0);
    const wide = variable.rows.length ? variable.rows[0].length : 0;
    const cut = variable.shape.length > 1 && wide < variable.shape[variable.shape.length - 1];
    const grid = element("table", { class: "values" });
    for (const row of variable.rows) {
      const line = element("tr");
      for (const value of row) line.append(element("td", value === "?" ? { class: "undefined", title: "undefined" } : {}, value));
      if (cut || (variable.shape.length === 1 && kept < size)) line.append(element("td", {}, "…"));
      grid.append(line);
    }
    const made = element("div", {}, grid);
    if (variable.summary) made.append(element("small", {}, variable.summary));
    return made;
  }

  function tableOf(program, number) {
    const held = variablesAt(program, number);
    const body = element("tbody");
    for (const variable of held.filter((one) => one.memory !== "shared" && !isPlain(one, number))) {
      const state = [variable.since === number && "changed", !variable.alive && "dead"].filter(Boolean).join(" ");
      const registers = registersOf(variable);
      const row = element("tr", state ? { class: state } : {});
      const name = element("th", { scope: "row" }, element("code", {}, variable.name), element("small", {}, typeOf(variable)));
      if (registers) name.append(element("small", {}, named(registers, "register")));
      if (!variable.alive) name.append(element("small", {}, "not read again"));
      row.append(name, element("td", {}, valuesOf(variable)));
      body.append(row);
    }
    return element("table", { class: "held" }, body);
  }

  // A single value that this step did not change takes less room.
  const isPlain = (variable, number) => variable.memory !== "shared" && !variable.shape.length && variable.since !== number;

  function plainOf(program, number) {
    const made = element("p", { class: "plain" });
    for (const variable of variablesAt(program, number).filter((one) => isPlain(one, number))) {
      const value = variable.format.endsWith(" +") ? `${variable.format} ${variable.rows[0][0]}` : variable.rows[0][0];
      made.append(element("code", { title: typeOf(variable) }, `${variable.name} = ${value}`), " ");
    }
    return made;
  }

  function registersInWords(program, number) {
    const live = variablesAt(program, number).filter((variable) => variable.alive);
    const total = live.reduce((sum, variable) => sum + (registersOf(variable) || 0), 0);
    if (!kernel.resources) return named(live.length, "live variable");
    return `Live tiles take ${named(total, "register")} of each of ${kernel.resources.threads} threads. ` +
      `Compiled for ${kernel.target}: ${named(kernel.resources.registers, "register")} at most; the compiler computes offsets and masks again.`;
  }

  // A pipelined load is issued stages - 1 executions ahead; its tile waits in one of `stages` buffers.
  function buffersOf(program, number) {
    const found = [];
    for (const access of kernel.accesses.filter((one) => one.pipelined && kernel.stages > 1)) {
      const times = program.steps.flatMap((one, index) =>
        one.accesses.some(([kind, argument]) => kind === access.kind && argument === access.argument) && one.line === access.line ? [index] : []);
      const done = times.filter((index) => index <= number).length;
      const newest = Math.max(0, done - 1);
      for (let buffer = 0; buffer < kernel.stages; buffer++) {
        const execution = [...times.keys()].find((one) => one >= newest && one < newest + kernel.stages && one % kernel.stages === buffer);
        const state = execution === undefined ? "free" : execution < done ? "in use" : "in flight";
        const variable = execution === undefined ? null : program.steps[times[execution]].changed[0];
        found.push({ title: `${access.argument}, buffer ${buffer}: ${state}`, variable, quiet: state !== "in use" });
      }
    }
    return found;
  }

  function sharedOf(program, number) {
    const made = element("div", { class: "shared" }, element("h4", {}, "Shared memory"));
    const own = variablesAt(program, number).filter(({ memory }) => memory === "shared");
    for (const variable of own) made.append(element("p", {}, element("code", {}, variable.name), ` ${typeOf(variable)}`), valuesOf(variable));
    const line = program.steps[number].line;
    const accesses = (kernel.resources?.shared || []).filter((one) => one.line === line);
    if (kernel.resources) {
      made.append(element("p", {}, kernel.resources.sharedBytes
        ? `${kernel.resources.sharedBytes.toLocaleString("en")} bytes for each program on ${kernel.target}.`
        : `The compiled kernel uses none on ${kernel.target}.`));
    }
    for (const { title, variable, quiet } of buffersOf(program, number)) {
      const box = element("div", { class: quiet ? "buffer quiet" : "buffer" }, element("p", {}, title));
      if (variable) box.append(valuesOf(variable));
      made.append(box);
    }
    for (const one of accesses) {
      made.append(element("p", { class: "now" }, `This line: ${one.kind}, ${named(one.wavefronts, "wavefront")} (ideal ${one.ideal}).`));
    }
    return made;
  }

  function didOf({ accesses, changed, raised, function: name }) {
    const words = accesses.map(([kind, argument, active, lanes]) => `${kind} ${argument}: ${active} of ${lanes} lanes`);
    if (raised) words.push(`stops here: ${raised}`);
    if (!words.length && !changed.length) words.push(name ? "changes no variable" : "");
    return words.join("; ");
  }

  function columnOf(program) {
    const number = at(program);
    const now = program.steps[number];
    const made = element("div", { class: "program", role: "group", "aria-label": `Program ${nameOf(program)}` }, element("h4", {}, `Program ${nameOf(program)}`));
    made.append(element("pre", { tabindex: 0 }, element("code", {}, `${String(now.line).padStart(4)}  ${now.code}`)));
    made.append(element("p", { class: now.raised ? "did bad" : "did" }, didOf(now)));
    if (step > number) made.append(element("p", { class: "did" }, ended(program)));
    const frame = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Variables of program ${nameOf(program)}` });
    frame.append(tableOf(program, number));
    made.append(element("h4", {}, "Registers, the last change first"), frame, plainOf(program, number), element("p", { class: "did" }, registersInWords(program, number)), sharedOf(program, number));
    return made;
  }

  const ended = (program) => program.stepsInAll > program.steps.length
    ? `The page keeps ${program.steps.length} of ${program.stepsInAll} steps.` : "This program has ended.";

  // The kernel's source with the number of each program at its line.
  function codeOf() {
    const body = element("tbody");
    source.querySelectorAll("tr[id]").forEach((row) => {
      const line = Number(/-line-(\d+)$/.exec(row.id)[1]);
      const here = chosen.filter((program) => program.steps[at(program)].line === line);
      const cells = [element("td", { class: "here" }, here.map((program) => program.id.join(",")).join(" ")),
        element("th", { scope: "row" }, String(line)), element("td", {}, element("code", {}, row.querySelector("code").textContent))];
      body.append(element("tr", here.length ? { class: "picked", "aria-current": "step" } : {}, ...cells));
    });
    return element("div", { class: "code scroll", tabindex: 0, role: "region", "aria-label": "Source, with the programs at their lines" }, element("table", {}, body));
  }

  function draw() {
    const before = stage.querySelector(".code")?.scrollTop ?? 0;
    slider.max = last();
    step = clamp(step, 0, last());
    slider.value = step;
    shown.textContent = `${step + 1} of ${last() + 1}`;
    const code = codeOf();
    stage.replaceChildren(code, element("div", { class: "programs" }, ...chosen.map(columnOf)));
    code.scrollTop = before;
    const row = code.querySelector(".picked");
    if (row && (row.offsetTop < code.scrollTop || row.offsetTop + row.offsetHeight > code.scrollTop + code.clientHeight)) {
      code.scrollTop = row.offsetTop - code.clientHeight / 2;
    }
    const now = chosen[0].steps[at(chosen[0])];
    const names = now.changed.map(({ name }) => name).join(", ");
    said.textContent = `Step ${step + 1} of ${last() + 1}: line ${now.line}${names ? ` sets ${names}` : ""}.`;
    root.querySelectorAll("[data-by]").forEach((button) => (button.disabled = step === (button.dataset.by < 0 ? 0 : last())));
    chips.replaceChildren(...playable.map((program) => {
      const button = element("button", { type: "button", "aria-pressed": chosen.includes(program) }, nameOf(program));
      button.addEventListener("click", () => toggle(program));
      return button;
    }));
  }

  function toggle(program) {
    const others = chosen.filter((one) => one !== program);
    if (others.length === chosen.length) chosen = playable.filter((one) => one === program || chosen.includes(one));
    else if (others.length) chosen = others;
    const number = playable.indexOf(program);
    draw();
    chips.children[number].focus();
  }

  function go(to) {
    step = clamp(to, 0, last());
    draw();
  }

  // The next or the previous step at the same line, as a loop returns to it.
  function again(by) {
    const { steps } = chosen[0];
    const line = steps[at(chosen[0])].line;
    for (let one = step + by; one >= 0 && one < steps.length; one += by) if (steps[one].line === line) return go(one);
  }

  if (playable.length) {
    slider.addEventListener("input", () => go(Number(slider.value)));
    root.querySelectorAll("[data-by]").forEach((button) => button.addEventListener("click", () => go(step + Number(button.dataset.by))));
    arrows(stage, (by) => go(step + by), (by) => go(step + by));
    stage.addEventListener("keydown", (event) => {
      const act = { Home: () => go(0), End: () => go(last()), PageDown: () => again(1), PageUp: () => again(-1) }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  return function show(program) {
    root.hidden = false;
    if (!playable.length) {
      root.querySelectorAll(".turns, .chips, .stage").forEach((one) => (one.hidden = true));
      said.textContent = "The statements of no program were kept.";
      return;
    }
    if (program !== asked) {
      asked = program;
      const first = playable.includes(program) ? program : playable[0];
      const second = playable.find((one) => one !== first);
      chosen = playable.filter((one) => one === first || (one === second && root.clientWidth > 900));
    }
    draw();
  };
}
