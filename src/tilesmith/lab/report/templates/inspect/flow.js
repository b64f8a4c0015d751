// View 3: data flow of one program; one box per line that loads, computes or stores.

const COLUMNS = { load: 0, store: 2, atomic: 2 };

function flowView(root, kernel, jump) {
  const frame = root.querySelector(".scroll");

  // All operations of one line and column form one box; its sources are the boxes whose results it uses.
  function boxesOf(operations) {
    const boxes = new Map();
    const owners = operations.map(({ kind, name, line, argument, shape }) => {
      const column = COLUMNS[kind] ?? 1;
      const key = column === 1 ? `1:${line}` : `${column}:${line}:${argument}`;
      if (!boxes.has(key)) boxes.set(key, { column, kind, line, argument, shape, names: new Map(), sources: new Set() });
      const box = boxes.get(key);
      box.names.set(name, (box.names.get(name) || 0) + 1);
      return box;
    });
    operations.forEach((operation, number) => operation.inputs.forEach((input) => {
      if (owners[input] !== owners[number]) owners[number].sources.add(owners[input]);
    }));
    return [...boxes.values()];
  }

  function titleOf(box) {
    const times = Math.max(...box.names.values());
    const name = box.column === 1 ? [...box.names.keys()].join(" ") : `${box.kind} ${box.argument ?? "?"}`;
    return [name, `line ${box.line}  [${box.shape.join(", ")}]${times > 1 ? `  ×${times}` : ""}`];
  }

  return function draw(program) {
    const boxes = boxesOf(program.operations || []);
    const available = frame.clientWidth;
    if (!available) return;
    if (!boxes.length) return frame.replaceChildren(element("p", { class: "said" }, "The operations of this program were not kept."));
    const wide = clamp(available / 3 - 36, 165, 250);
    const [across, down] = [Math.max((available - wide) / 2, wide + 40), 54];
    const filled = [0, 0, 0];
    for (const box of boxes) {
      box.x = box.column * across;
      box.y = 24 + down * filled[box.column]++;
    }
    const [width, height] = [2 * across + wide, 24 + down * Math.max(...filled)];
    const drawing = element("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Data flow" });
    ["load", "compute", "store"].forEach((word, column) =>
      drawing.append(element("svg:text", { x: column * across, y: 13, class: "quiet" }, word)));
    for (const box of boxes) for (const source of box.sources) drawing.append(edge(source, box, wide));
    for (const box of boxes) drawing.append(drawn(box, wide));
    frame.replaceChildren(drawing);
  };

  // A curve to the right between columns; an arc along the right side within a column.
  function edge(from, to, wide) {
    const [startX, startY, endY] = [from.x + wide, from.y + 20, to.y + 20];
    const bend = 18 + Math.min(14, Math.abs(endY - startY) / 20);
    const path = from.column === to.column
      ? `M${startX} ${startY}C${startX + bend} ${startY} ${startX + bend} ${endY} ${startX} ${endY}`
      : `M${startX} ${startY}C${startX + 30} ${startY} ${to.x - 30} ${endY} ${to.x} ${endY}`;
    return element("svg:path", { class: "wire", d: path });
  }

  function drawn(box, wide) {
    const [name, detail] = titleOf(box);
    const access = kernel.accesses.find((one) => box.column !== 1 && one.line === box.line && one.argument === box.argument);
    const most = Math.floor((wide - 18) / 6.7);
    const group = element("svg:g", { class: "box", role: "button", tabindex: 0, "aria-label": `${name}, ${detail}` },
      element("svg:rect", { class: "frame", x: box.x, y: box.y, width: wide, height: 42, rx: 4 }),
      element("svg:rect", { x: box.x, y: box.y, width: 5, height: 42, class: access ? access.rating : "work" }),
      element("svg:text", { x: box.x + 12, y: box.y + 17 }, name.length > most ? `${name.slice(0, most - 1)}…` : name),
      element("svg:text", { x: box.x + 12, y: box.y + 33, class: "quiet" }, detail));
    group.append(element("svg:title", {}, `${name}, ${detail}`));
    const go = () => jump(box.line);
    group.addEventListener("click", go);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(); }
    });
    return group;
  }
}
