"use strict";

// Elements. Text reaches the page as text nodes only.

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// Blocks of data: base64 of deflate. An opened block stays open.

const opened = new Map();

function openBlock(name) {
  if (!opened.has(name)) {
    const element = document.getElementById("block-" + name);
    const text = element.textContent;
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    element.textContent = "";
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    opened.set(name, new Response(stream).arrayBuffer());
  }
  return opened.get(name);
}

async function openIndex() {
  return JSON.parse(new TextDecoder().decode(await openBlock("index")));
}

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };
let halves = null; // the float32 of each float16

function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let code = 0; code < 65536; code++) {
    const sign = code & 0x8000 ? -1 : 1;
    const exponent = (code >> 10) & 31;
    const fraction = code & 1023;
    let size = (1 + fraction / 1024) * 2 ** (exponent - 15);
    if (exponent === 0) size = fraction * 2 ** -24;
    else if (exponent === 31) size = fraction ? NaN : Infinity;
    halves[code] = sign * size;
  }
  return halves;
}

// An array by its place: [block, offset, type, shape]. Halves become float32.
async function openArray(place) {
  if (!place) return null;
  const [block, offset, type, shape] = place;
  const buffer = await openBlock(block);
  const length = shape.reduce((product, size) => product * size, 1);
  if (type !== "f2") return new ARRAYS[type](buffer, offset, length);
  const table = halfTable();
  const codes = new Uint16Array(buffer, offset, length);
  const values = new Float32Array(length);
  for (let index = 0; index < length; index++) values[index] = table[codes[index]];
  return values;
}

// The state of the page is in its address, so that a view can be sent to someone.

function readAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}
function writeAddress(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
  history.replaceState(null, "", "#" + new URLSearchParams(kept).toString());
}

// Colours.

function colourOf(name, element = document.documentElement) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
function onScheme(callback) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
}

// Numbers in words.

function spell(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 1);
}
function spellBytes(size) {
  const units = ["bytes", "kB", "MB", "GB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit++; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : Number(size.toPrecision(3))} ${units[unit]}`;
}
function spellCount(value) {
  const units = ["", " thousand", " million", " billion", " trillion"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit++; }
  return `${Number(value.toPrecision(3))}${units[unit]}`;
}
function percent(share) {
  return `${share > 0 && share < 0.1 ? Number((100 * share).toPrecision(2)) : Math.round(100 * share)} %`;
}
