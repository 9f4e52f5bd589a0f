// The gallery: two mechanisms side by side, with dials over settings that were computed ahead.

const N = 64; // positions
const slots = []; // the two panels
let data = null;
let pictures = null;

class Slot {
  constructor(root, index) {
    this.root = root;
    this.index = index;
    this.mechanism = null;
    this.map = find("canvas", root);
    this.cell = null;
    this.map.addEventListener("pointermove", (event) => point(this.cellAt(event)));
    this.map.addEventListener("pointerleave", () => point(null));
    this.map.addEventListener("keydown", (event) => this.press(event));
    find("select", root).addEventListener("change", (event) => choose(this.index, event.target.value));
    find(".another", root).addEventListener("click", () => { this.input = (this.input + 1) % this.inputs();
      refresh(); });
  }

  show(mechanism, state = {}) {
    this.mechanism = mechanism;
    this.root.hidden = !mechanism;
    if (!mechanism) return;
    this.dials = mechanism.dials.map((dial, index) => Number(state.dials?.[index] ?? dial.start));
    const forms = Object.keys(mechanism.forms);
    this.form = forms.includes(state.form) ? state.form : forms.includes("bidirectional") ? "bidirectional" : forms[0];
    this.input = Number(state.input ?? 0);
    if (!this.setting()) this.dials = mechanism.dials.map((dial) => dial.start);
    this.input %= this.inputs();
    this.root.className = `slot ${mechanism.css}`;
    this.describe();
  }

  setting() { return this.mechanism.forms[this.form][this.dials.join(",")]; }
  inputs() { return this.setting().length; }
  picture() { return this.setting()[this.input]; }

  // Some values exclude each other: then the other dials return to where they began.
  turn(index, value) {
    this.dials[index] = value;
    if (!this.setting()) {
      this.dials = this.mechanism.dials.map((dial, other) => (other === index ? value : dial.start));
    }
    if (!this.setting()) this.dials = this.mechanism.dials.map((dial) => dial.start);
    refresh();
  }

  describe() {
    const { mechanism, root } = this;
    find("select", root).value = mechanism.name;
    find(".paper", root).textContent = mechanism.paper;
    find(".summary", root).textContent = mechanism.summary;
    const forms = find(".forms", root);
    forms.replaceChildren(
      ...["bidirectional", "causal"].map((form) => {
        const has = form in mechanism.forms;
        const button = make("button", { type: "button", "data-form": form, disabled: !has }, form);
        if (!has) button.title = `it has no ${form} form`;
        button.addEventListener("click", () => {
          this.form = form;
          if (!this.setting()) this.dials = mechanism.dials.map((dial) => dial.start);
          refresh();
        });
        return button;
      })
    );
    find(".dials", root).replaceChildren(...mechanism.dials.map((dial, index) => this.dial(dial, index)));
    const able = Object.entries(mechanism.supports);
    find(".abilities", root).replaceChildren(
      ...able.map(([name, yes]) => make("li", { class: yes ? "yes" : "no" }, (yes ? "✓ " : "– ")
        + name.replaceAll("_", " ")))
    );
    find(".options tbody", root).replaceChildren(
      ...mechanism.options.map((item) =>
        make("tr", {}, make("td", {}, make("code", {}, item.name)),
          make("td", {}, item.default === null ? "none" : String(item.default)), make("td", {}, item.help)))
    );
    find(".options", root).hidden = !mechanism.options.length;
    find(".costs", root).replaceChildren(mechanism.costs.length ? costChart(mechanism) : "");
    find(".state", root).textContent = stateLine(mechanism);
  }

  dial(dial, index) {
    const id = `dial-${this.index}-${index}`;
    const range = make("input", { type: "range", id, min: 0, max: dial.values.length - 1, step: 1, title: dial.help });
    range.value = this.dials[index];
    range.addEventListener("input", () => this.turn(index, Number(range.value)));
    return make("div", { class: "dial" }, make("label", { for: id, title: dial.help }, dial.name), range,
      make("output", { for: id }));
  }

  refresh() {
    const { mechanism, root } = this;
    if (!mechanism) return;
    for (const button of findAll(".forms button", root)) {
      button.setAttribute("aria-pressed", String(button.dataset.form === this.form));
    }
    findAll(".dial", root).forEach((row, index) => {
      find("input", row).value = this.dials[index];
      const word = mechanism.dials[index].values[this.dials[index]];
      find("output", row).textContent = word;
      find("input", row).setAttribute("aria-valuetext", word);
    });
    const another = find(".another", root);
    another.hidden = this.inputs() < 2;
    another.textContent = `Another input (${this.input + 1} of ${this.inputs()})`;
    find(".moves", root).textContent = mechanism.moves
      ? "What may be read depends on the input: the picture moves."
      : this.inputs() > 1 ? "The weights depend on the input; what may be read does not."
      : "What may be read is the same for every input.";
    const read = pictures.read(this.picture());
    const implied = mechanism.kind === "low rank" || mechanism.kind === "kernel";
    const shown = mechanism.shown === "derivative"
      ? "It has no single map: it transforms its values first. Shown is how strongly each output depends on each value."
      : implied ? "It never computes this map. Shown is the matrix that turns its values into its outputs."
      : "Shown are the weights that it applies.";
    find(".shown", root).textContent = shown + (read.signed ? " Red ones are negative." : "");
    find(".numbers", root).textContent =
      `${percent(read.could.reduce((sum, bit) => sum + bit, 0) / (N * N))} of the cells can be read, the largest is ` +
      `${spell(read.peak)}` + (read.outside ? `, and ${spell(read.outside)} was read outside: a bug` : "");
    find(".numbers", root).classList.toggle("bad", read.outside > 0);
    find(".code code", root).textContent = pythonLine(this);
    paint(this.map, read, mechanism, { size: 6, outline: true, cell: this.cell, root: this.root });
    this.say(read);
  }

  say(read = pictures.read(this.picture())) {
    const out = find(".readout", this.root);
    out.classList.toggle("idle", !this.cell);
    if (!this.cell) {
      out.textContent = "Point at a cell, or use the arrow keys.";
      return;
    }
    const [query, key] = this.cell;
    const place = query * N + key;
    const value = read.values[place];
    const what = this.mechanism.shown === "derivative" ? "depends on" : "reads";
    const verb = this.mechanism.shown === "derivative" ? "depend on" : "read";
    out.textContent = read.could[place] || value
      ? `query ${query} ${what} key ${key}: ${spell(value, 2)}`
      : `query ${query} cannot ${verb} key ${key}`;
  }

  cellAt(event) {
    const box = this.map.getBoundingClientRect();
    const at = (place, begin, size) => Math.max(0, Math.min(N - 1, Math.floor(((place - begin) / size) * N)));
    return [at(event.clientY, box.top, box.height), at(event.clientX, box.left, box.width)];
  }

  press(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") point(null);
    else if (event.key in moves) {
      const [down, right] = moves[event.key];
      const [query, key] = this.cell ?? [N / 2, N / 2];
      const within = (value) => Math.max(0, Math.min(N - 1, value));
      point([within(query + down), within(key + right)]);
    } else return;
    event.preventDefault();
  }
}

// Decoded pictures, a few of them kept.
class Pictures {
  constructor(codes, could, peaks, signed) {
    Object.assign(this, { codes, could, peaks, signed, kept: new Map() });
  }
  read(index) {
    if (this.kept.has(index)) return this.kept.get(index);
    const peak = this.peaks[index];
    const signed = Boolean(this.signed[index]);
    const steps = signed ? 126 : 254;
    const values = new Float32Array(N * N);
    const could = new Uint8Array(N * N);
    let outside = 0;
    for (let place = 0; place < N * N; place++) {
      const code = this.codes[index * N * N + place];
      const size = signed ? code & 127 : code;
      const value = size ? peak * 10 ** (4 * ((size - 1) / steps - 1)) : 0;
      values[place] = signed && code > 127 ? -value : value;
      could[place] = (this.could[index * N * N / 8 + (place >> 3)] >> (place & 7)) & 1;
      if (!could[place]) outside = Math.max(outside, Math.abs(value));
    }
    const sizes = values.map(Math.abs).filter((size) => size > 0).sort();
    // A few large weights must not hide the others, and a map in which all are equal should not look full.
    const mean = sizes.reduce((sum, size) => sum + size, 0) / (sizes.length || 1);
    const bright = Math.max(sizes.length ? sizes[Math.floor(0.99 * (sizes.length - 1))] : 1, 3 * mean);
    const found = { values, could, peak, signed, outside, bright };
    if (this.kept.size > 200) this.kept.clear();
    this.kept.set(index, found);
    return found;
  }
}

const sheet = document.createElement("canvas");
sheet.width = sheet.height = N;

function paint(canvas, read, mechanism, { size, outline = false, cell = null, root = canvas }) {
  const hue = colourOf("--k", root);
  const red = colourOf("--bad");
  const image = new ImageData(N, N);
  for (let place = 0; place < N * N; place++) {
    const value = read.values[place];
    const strength = Math.sqrt(Math.min(1, Math.abs(value) / read.bright));
    const colour = value < 0 || !read.could[place] ? red : hue;
    const alpha = read.could[place] ? 0.1 + 0.9 * strength : value ? 1 : 0;
    image.data.set([...colour, Math.round(255 * alpha)], 4 * place);
  }
  sheet.getContext("2d").putImageData(image, 0, 0);
  canvas.width = canvas.height = N * size;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(sheet, 0, 0, canvas.width, canvas.height);
  if (outline) edges(context, read.could, size, hue);
  if (cell) {
    const [query, key] = cell;
    const ink = colourOf("--ink");
    context.fillStyle = `rgb(${ink.join(" ")} / 12%)`;
    context.fillRect(0, query * size, canvas.width, size);
    context.fillRect(key * size, 0, size, canvas.height);
    context.strokeStyle = `rgb(${ink.join(" ")})`;
    context.lineWidth = 2;
    context.strokeRect(key * size - 1, query * size - 1, size + 2, size + 2);
  }
}

// The border of what could be read.
function edges(context, could, size, hue) {
  context.strokeStyle = `rgb(${hue.join(" ")} / 60%)`;
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 0; row <= N; row++) {
    for (let column = 0; column <= N; column++) {
      const here = row < N && column < N && could[row * N + column];
      const above = row > 0 && column < N && could[(row - 1) * N + column];
      const before = column > 0 && row < N && could[row * N + column - 1];
      const x = Math.min(N * size - 0.5, Math.max(0.5, column * size));
      const y = Math.min(N * size - 0.5, Math.max(0.5, row * size));
      if (Boolean(here) !== Boolean(above) && column < N) { context.moveTo(x, y); context.lineTo(x + size, y); }
      if (Boolean(here) !== Boolean(before) && row < N) { context.moveTo(x, y); context.lineTo(x, y + size); }
    }
  }
  context.stroke();
}

function stateLine(mechanism) {
  if (!mechanism.supports.streaming) return "It cannot decode token by token.";
  if (!mechanism.state) return "The size of its decoding state was not measured.";
  const [[short, small], [long, large]] = mechanism.state;
  const size = `Decoding state of one head of 64: ${spellBytes(small)} after ${short.toLocaleString("en")} tokens`;
  return large <= 1.05 * small ? `${size}, and it does not grow.`
    : `${size}, ${spellBytes(large)} after ${long.toLocaleString("en")}.`;
}

function pythonLine(slot) {
  const { mechanism } = slot;
  const quoted = (value) => (value === "yes" ? "True" : value === "no" ? "False" : value === "default" ? "None"
    : /^-?[\d.]+$/.test(value) ? value : `"${value}"`);
  const options = mechanism.dials.map((dial, index) => [dial, index])
    .filter(([dial]) => mechanism.options.some((option) => option.name === dial.name))
    .filter(([dial, index]) => dial.values[slot.dials[index]] !== "default")
    .map(([dial, index]) => {
      const option = mechanism.options.find((item) => item.name === dial.name);
      const value = quoted(dial.values[slot.dials[index]]);
      return `${dial.name}=${option.type.startsWith("a tuple") ? `(${value},)` : value}`;
    });
  const causal = slot.form === "causal" ? ["causal=True"] : [];
  return `longspan.MultiHead(${["512", "heads=8", `attention="${mechanism.name}"`, ...causal, ...options].join(", ")})`;
}

// Floating-point operations over the length, on two log axes, with dense attention beside.
function costChart(mechanism) {
  const dense = data.mechanisms.find((other) => other.name === "softmax") ?? mechanism;
  const [width, height, left, bottom] = [320, 150, 46, 22];
  const all = [...dense.costs, ...mechanism.costs].map((row) => row[1]);
  const low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all)) + 0.1;
  const lengths = mechanism.costs.map((row) => row[0]);
  const span = Math.log(lengths.at(-1) / lengths[0]);
  const x = (length) => left + ((width - left - 10) * Math.log(length / lengths[0])) / span;
  const y = (value) => height - bottom - ((height - bottom - 8) * (Math.log10(value) - low)) / (high - low);
  const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `operations of ${mechanism.name} from ${lengths[0]} to ${lengths.at(-1)} tokens` });
  for (let power = Math.ceil(low); power <= high; power++) {
    chart.append(draw("line", { x1: left, x2: width - 10, y1: y(10 ** power), y2: y(10 ** power), class: "rule" }));
    const unit = { 6: "1 M", 7: "10 M", 8: "100 M", 9: "1 G", 10: "10 G", 11: "100 G", 12: "1 T", 13: "10 T",
      14: "100 T" }[power] ?? `1e${power}`;
    chart.append(draw("text", { x: left - 5, y: y(10 ** power) + 4, class: "end" }, unit));
  }
  lengths.forEach((length, index) => {
    if (index % 2 === 0) chart.append(draw("text", { x: x(length), y: height - 6, class: "middle" },
      `${length / 1024}k`));
  });
  const path = (rows) => rows.map(([length, flops], index) =>
    `${index ? "L" : "M"}${x(length).toFixed(1)},${y(flops).toFixed(1)}`).join("");
  if (dense !== mechanism) chart.append(draw("path", { d: path(dense.costs), class: "other" }));
  chart.append(draw("path", { d: path(mechanism.costs), class: "own" }));
  for (const [length, flops] of mechanism.costs) {
    const ratio = dense.costs.find((row) => row[0] === length)?.[1] / flops;
    const tip = `${length.toLocaleString("en")} tokens: ${spellCount(flops)} operations` +
      (dense !== mechanism ? `; dense attention takes ${spell(ratio, 2)} times as many` : "");
    chart.append(draw("circle", { cx: x(length), cy: y(flops), r: 3, class: "dot" }, draw("title", {}, tip)));
  }
  return chart;
}

// What is chosen, and drawing again after a change.

function point(cell) {
  for (const slot of slots) { slot.cell = cell; slot.refresh(); }
}

function choose(index, name, state) {
  const mechanism = data.mechanisms.find((other) => other.name === name) ?? null;
  slots[index].show(mechanism, state);
  find("#panels").classList.toggle("two", Boolean(slots[1].mechanism));
  find("#compare").hidden = Boolean(slots[1].mechanism);
  refresh();
}

function refresh() {
  for (const slot of slots) slot.refresh();
  for (const card of findAll(".card")) {
    const at = slots.findIndex((slot) => slot.mechanism?.name === card.dataset.name);
    card.setAttribute("aria-pressed", String(at >= 0));
  }
  const state = {};
  slots.forEach((slot, index) => {
    if (!slot.mechanism) return;
    const letter = "ab"[index];
    Object.assign(state, { [letter]: slot.mechanism.name, [letter + "f"]: slot.form,
      [letter + "d"]: slot.dials.join(".") });
    if (slot.input) state[letter + "i"] = slot.input;
  });
  writeAddress(state);
}

function thumbnails() {
  for (const card of findAll(".card")) {
    const mechanism = data.mechanisms.find((other) => other.name === card.dataset.name);
    const form = mechanism.forms.bidirectional ?? Object.values(mechanism.forms)[0];
    const setting = form[mechanism.dials.map((dial) => dial.start).join(",")] ?? Object.values(form)[0];
    paint(find("canvas", card), pictures.read(setting[0]), mechanism, { size: 2, root: card });
  }
}

function filter(kind) {
  for (const button of findAll("#kinds button")) button.setAttribute("aria-pressed",
    String(button.dataset.kind === kind));
  for (const card of findAll(".card")) card.hidden = Boolean(kind) && card.dataset.kind !== kind;
}

async function begin() {
  data = await openIndex();
  const { codes, could, peaks, signed } = data.pictures;
  pictures = new Pictures(...(await Promise.all([codes, could, peaks, signed].map(openArray))));
  findAll(".slot").forEach((root, index) => slots.push(new Slot(root, index)));
  for (const card of findAll(".card")) {
    card.addEventListener("click", (event) => {
      choose(event.shiftKey ? 1 : 0, card.dataset.name);
      if (innerWidth < 900) find("#panels").scrollIntoView({ behavior: "smooth", block: "start" });
    });
  }
  for (const button of findAll("#kinds button")) button.addEventListener("click", () => filter(button.dataset.kind));
  find("#compare").addEventListener("click", () => {
    const other = slots[0].mechanism.name === "softmax" ? data.mechanisms.at(-1).name : "softmax";
    choose(1, data.mechanisms.some((mechanism) => mechanism.name === other) ? other : slots[0].mechanism.name);
  });
  find(".close").addEventListener("click", () => choose(1, ""));
  thumbnails();
  const address = readAddress();
  const state = (letter) => ({
    form: address[letter + "f"], input: address[letter + "i"],
    dials: address[letter + "d"]?.split(".").filter((word) => word !== "").map(Number),
  });
  const known = (name) => data.mechanisms.some((mechanism) => mechanism.name === name);
  const first = ["bigbird", data.mechanisms[0].name].find(known);
  choose(0, known(address.a) ? address.a : first, known(address.a) ? state("a") : {});
  if (known(address.b)) choose(1, address.b, state("b"));
  onScheme(() => { thumbnails(); refresh(); });
  document.documentElement.dataset.ready = "yes";
}

begin();
