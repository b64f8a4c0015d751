"use strict";
// Shared by all views: colours of the style sheet, elements, sharp canvases, and the cell of each tensor element.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg"; // a namespace; nothing is fetched

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Children are added as text, so names and comments of the script never become markup.
function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function sharp(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function count(numbers) {
  return numbers.reduce((product, number) => product * number, 1);
}

function named(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

// A tensor as a rectangle: the last dimension runs right, all others run down. A single dimension is wrapped.
function plane(shape, wrap) {
  const size = count(shape);
  const long = shape.filter((length) => length > 1);
  if (long.length < 2) {
    const columns = Math.min(wrap || 2 ** Math.ceil(Math.log2(Math.sqrt(size * 3) + 1)), Math.max(size, 1));
    return { rows: Math.max(1, Math.ceil(size / columns)), columns, wrapped: true, size };
  }
  const columns = shape[shape.length - 1];
  return { rows: size / columns, columns, wrapped: false, size };
}

// The index of the element at this offset, in elements from the first.
function indexAt(argument, offset) {
  const index = argument.shape.map(() => 0);
  const order = argument.shape.map((_, dimension) => dimension).filter((one) => argument.strides[one] > 0);
  order.sort((one, other) => argument.strides[other] - argument.strides[one]);
  let rest = offset;
  for (const dimension of order) {
    if (argument.shape[dimension] === 1) continue;
    index[dimension] = Math.floor(rest / argument.strides[dimension]);
    rest -= index[dimension] * argument.strides[dimension];
  }
  return index;
}

function cellAt(argument, flat, offset) {
  const index = indexAt(argument, offset);
  let place = 0;
  if (flat.wrapped) {
    index.forEach((number, dimension) => (place = place * argument.shape[dimension] + number));
    return [Math.floor(place / flat.columns), ((place % flat.columns) + flat.columns) % flat.columns];
  }
  for (let dimension = 0; dimension < index.length - 1; dimension++) {
    place = place * argument.shape[dimension] + index[dimension];
  }
  return [place, index[index.length - 1]];
}

function elementName(argument, offset) {
  return argument ? `[${indexAt(argument, offset).join(", ")}]` : `[${offset}]`;
}

// Calls `step` with -1 or 1 along one direction for the arrow keys.
function arrows(target, sideways, upwards) {
  target.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [sideways, -1], ArrowRight: [sideways, 1], ArrowUp: [upwards, -1], ArrowDown: [upwards, 1] };
    const [act, by] = step[event.key] || [];
    if (!act) return;
    event.preventDefault();
    act(by);
  });
}
