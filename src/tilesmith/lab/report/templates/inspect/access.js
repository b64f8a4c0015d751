// View 2: the elements that one program accesses, and the lanes of one warp.

const MOST_CELLS = 200000; // of one picture; longer runs are thinned out
const SMALL = 110; // width of a tensor's thumbnail in pixels

function accessView(root, kernel, jump) {
  const canvas = root.querySelector("canvas.drawing");
  const tensors = root.querySelector(".tensors");
  const chips = root.querySelector(".chips");
  const warp = root.querySelector(".warp");
  const whole = root.querySelector(".whole");
  const said = root.querySelector(".said[aria-live]");
  let program = null;
  let [chosen, request, lane] = [0, 0, 0];
  let zoom = null; // the cells of the current picture, their size, and the tensor

  const shown = () => program.accesses || [];
  const facts = (one) => kernel.accesses[one.access];
  const argumentOf = (one) => tensor(facts(one).argument);

  // A tensor inside a tuple has no known shape: it is drawn as one row, up to its last accessed element.
  function tensor(name) {
    if (kernel.arguments[name]) return kernel.arguments[name];
    const ends = shown().filter((one) => facts(one).argument === name).flatMap((one) => one.runs.map((run) => run[0] + run[1]));
    const longest = ends.reduce((most, end) => Math.max(most, end), 1);
    return { shape: [longest], strides: [1], dtype: "at least", alignment: DATA.sectorBytes };
  }

  function show(from) {
    program = from;
    chosen = clamp(chosen, 0, Math.max(0, shown().length - 1));
    [request, lane] = [0, 0];
    listTensors();
    listChips();
    showChosen();
  }

  function listTensors() {
    const names = [...new Set(shown().map((one) => facts(one).argument))];
    tensors.replaceChildren(...names.map((name) => {
      const argument = tensor(name);
      const flat = plane(argument.shape);
      const size = [SMALL, clamp((SMALL * flat.rows) / flat.columns, 24, SMALL)];
      const small = element("canvas", { "aria-hidden": "true" });
      small.style.width = `${size[0]}px`;
      const context = sharp(small, ...size);
      for (const one of shown().filter((each) => facts(each).argument === name)) {
        context.fillStyle = colour(facts(one).rating);
        segments(argument, flat, one).forEach(([row, column, length]) => context.fillRect(
          (column * size[0]) / flat.columns, (row * size[1]) / flat.rows,
          Math.max(1.5, (length * size[0]) / flat.columns), Math.max(1.5, size[1] / flat.rows)));
      }
      const button = element("button", { type: "button" }, small, element("code", {}, name),
        `${argument.dtype} [${argument.shape.join(", ")}]`);
      button.addEventListener("click", () => choose(shown().findIndex((one) => facts(one).argument === name)));
      button.dataset.argument = name;
      return button;
    }));
  }

  function listChips() {
    const times = {};
    chips.replaceChildren(...shown().map((one, number) => {
      const { kind, line, argument, rating } = facts(one);
      times[one.access] = (times[one.access] || 0) + 1;
      const again = times[one.access] > 1 ? `, time ${times[one.access]}` : "";
      const chip = element("button", { type: "button", title: DATA.ratings[rating] },
        element("i", { class: rating, "aria-hidden": "true" }), `${kind} ${argument}, line ${line}${again}`);
      chip.addEventListener("click", () => choose(number));
      return chip;
    }));
  }

  function choose(number) {
    [chosen, request, lane] = [number, 0, 0];
    showChosen();
    const { line, shown: here } = facts(shown()[chosen]);
    if (here) jump(line);
  }

  function showChosen() {
    const one = shown()[chosen];
    if (!one) {
      whole.textContent = "The addresses of this program were not kept.";
      warp.replaceChildren();
      return;
    }
    [...chips.children].forEach((chip, number) => chip.setAttribute("aria-pressed", number === chosen));
    [...tensors.children].forEach((button) =>
      button.setAttribute("aria-pressed", button.dataset.argument === facts(one).argument));
    const { rating, efficiency } = facts(one);
    const used = efficiency === null ? "" : `, ${(100 * efficiency).toFixed(1)} % of the moved bytes are used`;
    whole.textContent = `${named(one.active, "element")}, ${one.masked.toLocaleString("en")} masked off. ` +
      `${DATA.ratings[rating]}${used}.` + (one.cut ? " Only the first runs of elements are drawn." : "");
    drawWarp();
    pickLane(activeLanes()[0] ?? 0);
  }

  // Runs of neighbouring cells: [row, first column, length].
  function segments(argument, flat, one) {
    const found = [];
    const total = one.runs.reduce((sum, run) => sum + run[1], 0);
    const stride = Math.max(1, Math.ceil(total / MOST_CELLS));
    let last = null;
    for (const [first, length] of one.runs) {
      for (let offset = first; offset < first + length; offset += stride) {
        const [row, column] = cellAt(argument, flat, offset);
        if (last && last[0] === row && last[1] + last[2] === column) last[2] += stride;
        else found.push((last = [row, column, stride]));
      }
    }
    return found;
  }

  function draw() {
    const width = canvas.clientWidth;
    const one = shown()[chosen];
    canvas.hidden = !one;
    if (!width || !one) return;
    const argument = argumentOf(one);
    const flat = plane(argument.shape, width < 500 ? 32 : 64);
    const cells = segments(argument, flat, one);
    const box = surrounded(cells, flat, width);
    // Cells are square where they fit; a few long rows are drawn taller to stay visible.
    const wide = Math.min(width / box.columns, Math.max(22, 360 / box.rows));
    const high = clamp(360 / box.rows, Math.min(wide, 0.5), Math.max(16, Math.min(wide, 22)));
    const context = sharp(canvas, width, Math.ceil(box.rows * high));
    const cell = (row, column, length = 1) => [(column - box.left) * wide, (row - box.top) * high, length * wide, high];
    const gap = Math.min(wide, high) >= 5 ? 1 : 0;
    context.fillStyle = colour("raised");
    for (let row = Math.max(0, box.top); row < Math.min(flat.rows, box.top + box.rows); row++) {
      const [x, y, long] = cell(row, 0, flat.columns);
      context.fillRect(x, y, long, high - gap);
    }
    context.fillStyle = colour(facts(one).rating);
    for (const [row, column, length] of cells) {
      for (let step = 0; step < (gap ? length : 1); step++) {
        const [x, y, across, down] = cell(row, column + step, gap ? 1 : length);
        context.fillRect(x, y, Math.max(0.75, across - gap), Math.max(0.75, down - gap));
      }
    }
    zoom = { box, wide, high, flat, argument };
    outline(context, cell, one);
  }

  // The bounding box of the accessed cells, with a margin.
  function surrounded(cells, flat, width) {
    const bounds = cells.reduce(([top, left, bottom, right], [row, column, length]) => [
      Math.min(top, row), Math.min(left, column), Math.max(bottom, row + 1), Math.max(right, column + length),
    ], [Infinity, Infinity, 0, 0]);
    let [top, left, bottom, right] = cells.length ? bounds : [0, 0, 1, 1];
    [top, bottom] = [Math.max(0, top - 1), Math.max(bottom, Math.min(flat.rows, bottom + 1))];
    const wanted = flat.wrapped ? flat.columns : Math.min(flat.columns, Math.max(right - left + 2, (bottom - top) * (width / 360)));
    left = clamp(Math.floor((left + right - wanted) / 2), 0, Math.max(0, flat.columns - wanted));
    return { top, left, rows: bottom - top, columns: Math.max(right - left, Math.ceil(wanted)) };
  }

  function outline(context, cell, one) {
    const asked = one.requests[request];
    if (!asked) return;
    const small = Math.min(zoom.wide, zoom.high) < 7; // an outline would hide the cell
    context.strokeStyle = context.fillStyle = colour("ink");
    for (const [number, offsets] of asked.lanes) {
      for (const offset of offsets) {
        const [x, y, wide, high] = cell(...cellAt(zoom.argument, zoom.flat, offset));
        context.lineWidth = number === lane ? 3 : 1;
        context.globalAlpha = number === lane ? 1 : small ? 0.35 : 0.9;
        if (small) context.fillRect(x, y, Math.max(1.5, wide), Math.max(1.5, high));
        else context.strokeRect(x, y, wide - 1, high - 1);
      }
    }
  }

  function activeLanes() {
    return (shown()[chosen]?.requests[request]?.lanes || []).map(([number]) => number);
  }

  function drawWarp() {
    const one = shown()[chosen];
    if (!one.requests.length) {
      const why = facts(one).bulk ? "A TMA copy: the hardware fetches the block, no lane requests an element."
        : "The lanes' elements are unknown here.";
      warp.replaceChildren(element("p", { class: "said" }, why));
      return;
    }
    const menu = element("select", { "aria-label": "Request of a warp" },
      ...one.requests.map((asked, number) => element("option", { value: number }, `warp ${asked.warp}, instruction ${asked.instruction}`)));
    menu.value = request;
    menu.addEventListener("change", () => turnTo(Number(menu.value)));
    const asked = one.requests[request];
    const verdict = `${named(asked.sectors, "sector")} of ${DATA.sectorBytes} bytes, ideal is ${asked.ideal_sectors}`;
    warp.replaceChildren(element("div", { class: "turn" }, menu, verdict), wires(one, asked));
  }

  // Lanes above, sectors below, and a line from each lane to every sector that it requests.
  function wires(one, asked) {
    const bytes = facts(one).elementBytes;
    const shift = argumentOf(one).alignment % DATA.sectorBytes;
    const sectorOf = (offset) => Math.floor((offset * bytes + shift) / DATA.sectorBytes);
    const sectors = [...new Set(asked.lanes.flatMap(([, offsets]) => offsets.map(sectorOf)))].sort((a, b) => a - b);
    const wide = 20 * kernel.warpLanes;
    const drawing = element("svg:svg", { viewBox: `0 0 ${wide} 130`, role: "group", "aria-label": "Lanes of the warp and their sectors" });
    const owned = new Map(asked.lanes);
    const step = wide / Math.max(sectors.length, 1);
    const places = new Map(sectors.map((sector, number) => [sector, (number + 0.5) * step]));
    for (const [number, offsets] of owned) {
      for (const sector of new Set(offsets.map(sectorOf))) {
        drawing.append(element("svg:path", { class: "wire", "data-lane": number,
          d: `M${20 * number + 10} 40C${20 * number + 10} 80 ${places.get(sector)} 70 ${places.get(sector)} 110` }));
      }
    }
    for (let number = 0; number < kernel.warpLanes; number++) {
      const [style, name] = owned.has(number) ? ["lane", `lane ${number}`] : ["lane off", `lane ${number}, masked off`];
      const box = element("svg:rect", { class: style, x: 20 * number + 2, y: 22, width: 16, height: 18, rx: 2,
        role: "button", tabindex: -1, "data-lane": number, "aria-label": name });
      box.addEventListener("pointerenter", () => pickLane(number));
      box.addEventListener("focus", () => pickLane(number));
      drawing.append(box);
      if (number % 4 === 0) drawing.append(element("svg:text", { x: 20 * number + 3, y: 15, class: "quiet" }, String(number)));
    }
    const rating = asked.ideal_sectors >= DATA.uncoalescedBelow * asked.sectors ? facts(one).rating : "uncoalesced";
    for (const place of places.values()) {
      const half = Math.min(30, 0.4 * step);
      drawing.append(element("svg:rect", { class: rating, x: place - half, y: 110, width: 2 * half, height: 18, rx: 2 }));
    }
    arrows(drawing, stepLane, stepRequest);
    return drawing;
  }

  function pickLane(number) {
    lane = number;
    const one = shown()[chosen];
    for (const part of warp.querySelectorAll("[data-lane]")) {
      const picked = Number(part.dataset.lane) === lane;
      part.classList.toggle("picked", picked);
      if (part.matches(".lane")) part.setAttribute("tabindex", picked ? 0 : -1);
    }
    const offsets = new Map(one.requests[request]?.lanes || []).get(lane);
    const { argument } = facts(one);
    said.textContent = !one.requests.length ? "" : offsets
      ? `Lane ${lane} requests ${named(offsets.length, "element")}: ${argument}${elementName(argumentOf(one), offsets[0])}` +
        (offsets.length > 1 ? ` to ${elementName(argumentOf(one), offsets[offsets.length - 1])}` : "")
      : `Lane ${lane} is masked off or idle.`;
    draw();
  }

  function turnTo(number) {
    request = number;
    drawWarp();
    pickLane(activeLanes().includes(lane) ? lane : activeLanes()[0] ?? 0);
  }

  function stepLane(by) {
    pickLane(clamp(lane + by, 0, kernel.warpLanes - 1));
    if (warp.contains(document.activeElement)) warp.querySelector(".lane.picked").focus();
  }

  function stepRequest(by) {
    const within = warp.contains(document.activeElement);
    turnTo(clamp(request + by, 0, Math.max(0, shown()[chosen].requests.length - 1)));
    if (within) warp.querySelector(".lane.picked").focus();
  }

  canvas.addEventListener("pointermove", (event) => {
    const one = shown()[chosen];
    if (!zoom || !one) return;
    const [row, column] = [event.offsetY / zoom.high + zoom.box.top, event.offsetX / zoom.wide + zoom.box.left].map(Math.floor);
    for (const [number, asked] of one.requests.entries()) {
      const owner = asked.lanes.find(([, offsets]) => offsets.some((offset) => {
        const [down, right] = cellAt(zoom.argument, zoom.flat, offset);
        return down === row && right === column;
      }));
      if (!owner) continue;
      if (number !== request) turnTo(number);
      if (owner[0] !== lane) pickLane(owner[0]);
      return;
    }
  });
  arrows(canvas, stepLane, stepRequest);

  function chooseLine(line) {
    const number = shown().findIndex((one) => facts(one).line === line);
    if (number >= 0) choose(number);
    return number >= 0;
  }

  return { show, draw: () => { if (program) { listTensors(); showChosen(); } }, chooseLine };
}
