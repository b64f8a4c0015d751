// View 4: operations of one program in order, and how far ahead of their use loads are issued.

const ROWS = ["load", "dot", "reduce", "special", "float", "integer", "store", "atomic"];

function timelineView(root, kernel, jump) {
  const frame = root.querySelector(".scroll");
  const said = root.querySelector(".said");
  let parts = [];

  const accessOf = (operation) => kernel.accesses.find((one) =>
    one.kind === operation.kind && one.line === operation.line && one.argument === operation.argument);

  // For every operation: where it is issued and where its result is used. A pipelined load is issued stages - 1
  // iterations before its use; the first such loads before all other operations.
  function placed(operations) {
    const earlier = new Map(); // slots of the executions of each load so far
    const ahead = kernel.stages - 1;
    const lead = new Map();
    let before = 0;
    operations.forEach((operation) => {
      const key = `${operation.line}:${operation.argument}`;
      if (accessOf(operation)?.pipelined && ahead > 0 && (lead.get(key)?.length || 0) < ahead) {
        lead.set(key, [...(lead.get(key) || []), before++]);
      }
    });
    return operations.map((operation, number) => {
      const slot = before + number;
      const access = accessOf(operation);
      if (!access?.pipelined || ahead <= 0) return { operation, access, issue: slot, slot, stage: null };
      const key = `${operation.line}:${operation.argument}`;
      const slots = earlier.get(key) || [];
      earlier.set(key, [...slots, slot]);
      const issue = slots.length < ahead ? lead.get(key)[slots.length] : slots[slots.length - ahead];
      return { operation, access, issue, slot, stage: slots.length % kernel.stages };
    });
  }

  function draw(program) {
    const available = frame.clientWidth;
    if (!available) return;
    const operations = program.operations || [];
    if (!operations.length) return frame.replaceChildren(element("p", { class: "said" }, "The operations of this program were not kept."));
    const bars = placed(operations);
    const rows = ROWS.filter((row) => operations.some((operation) => operation.kind === row));
    const staged = bars.some((bar) => bar.stage !== null);
    const ahead = [...new Set(bars.filter((bar) => bar.stage !== null).map((bar) => bar.access))];
    const high = (row) => (row === "load" && staged ? 9 * kernel.stages * ahead.length : 22);
    const slots = bars[bars.length - 1].slot + 1;
    const label = 62;
    const wide = clamp((available - label - 4) / slots, 9, 60);
    const tops = new Map();
    let height = 4;
    for (const row of rows) {
      tops.set(row, height);
      height += high(row) + 6;
    }
    const width = label + slots * wide + 2;
    const drawing = element("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Timeline" });
    rows.forEach((row) => drawing.append(element("svg:text", { x: 0, y: tops.get(row) + 15, class: "quiet" }, row)));
    parts = bars.map((bar, number) => {
      const top = tops.get(bar.operation.kind);
      const sub = bar.stage === null ? [top, high(bar.operation.kind)]
        : [top + 9 * (kernel.stages * ahead.indexOf(bar.access) + bar.stage), 8]; // one row per buffer
      const style = bar.access ? bar.access.rating : { dot: "dot", reduce: "reduce" }[bar.operation.kind] || "work";
      const part = element("svg:rect", { class: `operation ${style}`, x: label + bar.issue * wide, y: sub[0], rx: 2,
        width: (bar.slot - bar.issue + 1) * wide - 1, height: sub[1], role: "button", tabindex: number ? -1 : 0,
        "aria-label": words(bar, number, bars.length) });
      part.addEventListener("pointerenter", () => tell(bar, number, bars.length));
      part.addEventListener("focus", () => tell(bar, number, bars.length));
      part.addEventListener("click", () => jump(bar.operation.line));
      part.addEventListener("keydown", (event) => { if (event.key === "Enter") jump(bar.operation.line); });
      drawing.append(part);
      return part;
    });
    arrows(drawing, step, step);
    frame.replaceChildren(drawing);
    said.textContent = staged
      ? `${named(kernel.stages, "stage")} on ${kernel.target}: loads are issued ` +
        `${named(kernel.stages - 1, "iteration")} ahead, each stage into its own buffer.`
      : `No load is pipelined on ${kernel.target}.`;
  }

  function words({ operation, issue, slot, stage }, number, total) {
    const what = operation.argument ? `${operation.kind} ${operation.argument}` : operation.name;
    const ahead = stage !== null && slot > issue ? `, issued ${slot - issue} operations ahead, buffer ${stage}` : "";
    return `${number + 1} of ${total}: ${what} [${operation.shape.join(", ")}] ${operation.dtype}, line ${operation.line}${ahead}`;
  }

  function tell(bar, number, total) {
    parts.forEach((part, other) => {
      part.classList.toggle("picked", other === number);
      part.setAttribute("tabindex", other === number ? 0 : -1);
    });
    said.textContent = words(bar, number, total);
  }

  function step(by) {
    const at = parts.indexOf(document.activeElement);
    if (at >= 0) parts[clamp(at + by, 0, parts.length - 1)].focus();
  }

  return draw;
}
