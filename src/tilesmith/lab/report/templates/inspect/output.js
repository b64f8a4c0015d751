// View 1: the output, one tile per program.

function outputView(root, kernel, pick) {
  const canvas = root.querySelector("canvas");
  const slider = root.querySelector("input");
  const label = root.querySelector("output");
  const said = root.querySelector(".said");
  const traced = kernel.traced;
  const stored = traced.find((program) => program.tiles.length)?.tiles[0][0];
  const shape = stored && kernel.arguments[stored] ? kernel.arguments[stored].shape : null;
  let flat = null;
  let scale = [1, 1];
  slider.max = Math.max(0, traced.length - 1);

  // Without stores the picture is the grid: one cell per program.
  function boxes(program) {
    if (!shape) {
      const [x, y, z] = program.id;
      return [[y + z * kernel.grid[1], x, y + z * kernel.grid[1] + 1, x + 1]];
    }
    return program.tiles.filter(([name]) => name === stored).flatMap(([, box]) => boxOf(box));
  }

  // A box of indices as rectangles [top, left, bottom, right] of the picture.
  function boxOf(box) {
    if (!flat.wrapped) {
      const [top, bottom] = [0, 1].map((end) =>
        box.slice(0, -1).reduce((row, range, dimension) => row * shape[dimension] + range[end] - end, 0) + end);
      const [left, right] = box[box.length - 1];
      return [[top, left, bottom, right]];
    }
    const [first, last] = [0, 1].map((end) =>
      box.reduce((place, range, dimension) => place * shape[dimension] + range[end] - end, 0) + end);
    const found = [];
    for (let place = first; place < last; place = (Math.floor(place / flat.columns) + 1) * flat.columns) {
      const row = Math.floor(place / flat.columns);
      const end = Math.min(last, (row + 1) * flat.columns);
      found.push([row, place - row * flat.columns, row + 1, end - row * flat.columns]);
    }
    return found;
  }

  function layOut(width) {
    if (!shape) {
      flat = { rows: kernel.grid[1] * kernel.grid[2], columns: kernel.grid[0], wrapped: false };
    } else {
      // Whole tiles side by side; the picture is about twice as wide as high.
      const box = traced.find((program) => program.tiles.length).tiles[0][1];
      const tile = Math.max(1, count(box.map(([low, high]) => high - low)));
      const tiles = Math.ceil(count(shape) / tile);
      const across = Math.max(1, Math.ceil(Math.sqrt((tiles * width) / 240 / 2)));
      flat = plane(shape, tile * Math.min(across, tiles));
    }
    const height = clamp((width * flat.rows) / flat.columns, 90, 300);
    scale = [width / flat.columns, height / flat.rows];
    return height;
  }

  function draw(picked) {
    const width = canvas.clientWidth;
    if (!width) return;
    const context = sharp(canvas, width, layOut(width));
    const fill = (box) => context.fillRect(box[1] * scale[0], box[0] * scale[1],
      Math.max(0.75, (box[3] - box[1]) * scale[0]), Math.max(0.75, (box[2] - box[0]) * scale[1]));
    const shades = [colour("tile"), colour("tile-other")];
    for (const program of traced) {
      context.fillStyle = shades[(program.id[0] + program.id[1] + program.id[2]) % 2];
      boxes(program).forEach(fill);
    }
    if (!traced.length) return;
    context.fillStyle = colour("accent");
    boxes(traced[picked]).forEach((box) => fill(atLeast(box)));
    slider.value = picked;
    label.textContent = `(${traced[picked].id.join(", ")})`;
    slider.setAttribute("aria-valuetext", `program ${label.textContent}`);
    const tiles = traced[picked].tiles.map(([name, box]) => `${name}[${box.map((ends) => ends.join(":")).join(", ")}]`);
    const left = kernel.programs - traced.length;
    said.textContent = `Writes ${tiles.join(" and ") || "nothing"}.` +
      (left ? ` ${left.toLocaleString("en")} of ${kernel.programs.toLocaleString("en")} programs were not traced and stay blank.` : "");
  }

  // A tile may be smaller than a pixel; the selected tile must stay visible.
  function atLeast([top, left, bottom, right]) {
    const [wide, high] = [4 / scale[0], 4 / scale[1]];
    return [top, left, Math.max(bottom, top + high), Math.max(right, left + wide)];
  }

  canvas.addEventListener("click", (event) => {
    const column = event.offsetX / scale[0];
    const row = event.offsetY / scale[1];
    const hit = traced.findIndex((program) => boxes(program).some(
      ([top, left, bottom, right]) => row >= top && row < bottom && column >= left && column < right));
    if (hit >= 0) pick(hit);
  });
  slider.addEventListener("input", () => pick(Number(slider.value)));
  const next = (by) => pick(clamp(Number(slider.value) + by, 0, traced.length - 1));
  arrows(canvas, next, (by) => {
    const [x, y, z] = traced[Number(slider.value)].id;
    const hit = traced.findIndex(({ id }) => id[0] === x && id[1] === y + by && id[2] === z);
    if (hit >= 0) pick(hit);
    else next(by);
  });
  return draw;
}
