// The page: which head, which view, which cell; and all of it in the address.

const VIEWS = {
  map: ["Map", () => true],
  lines: ["Lines", () => true],
  model: ["All heads' lines", () => true],
  offsets: ["Distances", () => true],
  together: ["Together", (record) => record.modules.some((module) => module.mean || module.max)
    || record.rollouts.length > 0],
  difference: ["Difference", (record) => record.modules.some((module) => module.heads.some((head) => head.difference))],
  image: ["Image", (record) => Boolean(record.picture)],
  steps: ["Written text", (record) => Boolean(record.generated)],
};
const MOST_SOURCES = 8; // heads whose numbers stay open

const state = {
  record: null, number: 0, place: 0, view: "map", step: 0, sources: new Map(),
  shared: { x: 0, y: 0, size: null, query: null, key: null, locked: false, fog: false, pooling: "max",
    contrast: "log" },

  current() {
    const module = this.record.modules[this.number];
    return { module, head: module.heads[this.place] ?? null, number: this.number, place: this.place };
  },

  source() {
    const { module, head } = this.current();
    if (!head) return null;
    const name = `${this.number} ${this.place}`;
    if (!this.sources.has(name)) {
      this.sources.set(name, new Source({
        title: `${module.title}, head ${head.index}`, queries: this.record.axes[module.queries],
          keys: this.record.axes[module.keys],
        pyramid: head.pyramid, detail: head.detail, pattern: head.pattern, signed: module.signed, largest: null,
      }));
      if (this.sources.size > MOST_SOURCES) this.sources.delete(this.sources.keys().next().value);
    }
    return this.sources.get(name);
  },

  async choose(number, place, view = this.view) {
    const before = this.current().module;
    Object.assign(this, { number, place, view });
    const after = this.current().module;
    if (before.queries !== after.queries || before.keys !== after.keys) Object.assign(this.shared,
      { x: 0, y: 0, size: null, query: null, key: null, locked: false });
    await this.show();
  },

  async show() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    for (const [name, section] of Object.entries(this.sections)) section.hidden = name !== this.view;
    for (const tab of findAll("#tabs button")) tab.setAttribute("aria-selected",
      String(tab.dataset.view === this.view));
    grid.mark(this.number, this.place);
    const source = this.source();
    if (source) await source.open();
    if (turn !== this.turn) return; // another head was chosen meanwhile
    find("#viewer").classList.toggle("wide", ["together", "difference", "steps"].includes(this.view));
    if (source || this.view === "steps") await this.showView(source);
    await this.showNone(source);
    if (turn !== this.turn) return;
    await side.show(source);
    this.save();
  },

  // A mechanism without a map: why, and what it could read, if that is known.
  async showNone(source) {
    const { module } = this.current();
    const box = find("#none");
    box.hidden = Boolean(source);
    for (const section of Object.values(this.sections)) section.classList.toggle("empty", !source
      && this.view !== "steps");
    if (source) return;
    box.replaceChildren(make("p", {}, module.sentence));
    if (!module.pattern?.cells) return;
    const cells = await openArray(module.pattern.cells);
    const [rows, columns] = module.pattern.cells[3];
    const canvas = make("canvas", { width: columns, height: rows, role: "img", "aria-label": "what could be read" });
    const image = new ImageData(columns, rows);
    const colour = colourOf("--up");
    cells.forEach((could, place) => { if (could) image.data.set([...colour, 200], 4 * place); });
    canvas.getContext("2d").putImageData(image, 0, 0);
    box.append(make("p", { class: "quiet" },
      `Filled: what could be read. Rows: ${rows} queries, columns: ${columns} places.`), canvas);
  },

  async showView(source) {
    if (this.view === "map") {
      await map.show(source);
      find("#fog").disabled = !source.pattern?.known;
      find("#pattern-says").textContent = source.pattern ? source.pattern.sentence : "";
      drawLegend(find("#legend"), map);
      this.readout();
    } else await parts[this.view].show(source);
  },

  // A view tells that the window or the cell has changed.
  changed(what) {
    if (this.view === "map") map.request();
    if (what === "cell") {
      this.readout();
      if (["lines", "model", "image"].includes(this.view)) parts[this.view].show(this.source());
      if (this.shared.locked || this.view !== "map") side.show(this.source());
      else later("side", () => side.show(this.source()));
    }
    later("save", () => this.save(), 250); // browsers allow some 200 changes of the address in 30 seconds
  },

  readout() {
    const source = this.source();
    const { query, key, locked } = this.shared;
    const out = find("#readout");
    if (!source?.levels) return;
    if (query === null || key === null) {
      out.textContent = "Point at a cell. Click keeps it, Esc lets it go. Drag to move, wheel or + and − to zoom, " +
        "0 for all.";
      out.className = "readout idle";
      return;
    }
    out.className = "readout";
    out.textContent = source.sentence(query, key) + (locked ? " (kept)" : "");
  },

  async restyle() {
    Object.assign(this.shared, { pooling: grid.pooling.value, contrast: find("#contrast").value,
      fog: find("#fog").checked });
    grid.restyle();
    if (this.source()) map.restyle();
    parts.together?.restyle();
    parts.difference?.several.restyle();
    await this.show();
  },

  save() {
    const { shared } = this;
    const window = shared.size && (shared.x || shared.y || shared.zoomed)
      ? [shared.x, shared.y, shared.size].map((value) => value.toFixed(3)).join("_") : "";
    writeAddress({
      l: this.number, h: this.place, v: this.view === "map" ? "" : this.view, q: shared.locked ? shared.query : "",
        k: shared.locked ? shared.key : "",
      w: window, s: this.view === "steps" ? this.step : "", o: grid.order.value === "layer" ? "" : grid.order.value,
      p: grid.pooling.value === "max" ? "" : grid.pooling.value, c: shared.contrast === "log" ? "" : shared.contrast,
        f: shared.fog ? 1 : "",
    });
  },

  restore() {
    const found = readAddress();
    const whole = (text, most) => (/^\d+$/.test(text ?? "") && Number(text) <= most ? Number(text) : null);
    const { modules } = this.record;
    const detailed = modules.findIndex((module) => module.heads.some((head) => head.detail));
      // the first that can be shown exactly
    this.number = whole(found.l, modules.length - 1) ?? Math.max(0, detailed >= 0 ? detailed
      : modules.findIndex((module) => module.heads.length));
    const { module } = this.current();
    this.place = whole(found.h, module.heads.length - 1) ?? Math.max(0, module.heads.findIndex((head) => head.detail));
    if (found.v in VIEWS && VIEWS[found.v][1](this.record)) this.view = found.v;
    this.step = whole(found.s, 1e9) ?? 0;
    const query = whole(found.q, this.record.axes[module.queries].tokens.length - 1);
    const key = whole(found.k, this.record.axes[module.keys].tokens.length - 1);
    if (query !== null && key !== null) Object.assign(this.shared, { query, key, locked: true });
    const window = (found.w ?? "").split("_").map(Number);
    if (window.length === 3 && window.every(Number.isFinite)) Object.assign(this.shared,
      { x: window[0], y: window[1], size: window[2] });
    if (found.o in MEASURES) grid.order.value = found.o;
    if (found.p === "mean") grid.pooling.value = "mean";
    if (found.c === "linear") find("#contrast").value = "linear";
    find("#fog").checked = found.f === "1";
    Object.assign(this.shared, { pooling: grid.pooling.value, contrast: find("#contrast").value,
      fog: find("#fog").checked });
  },
};

// Runs the last of several calls, soon.
const waiting = new Map();
function later(name, run, milliseconds = 60) {
  clearTimeout(waiting.get(name));
  waiting.set(name, setTimeout(run, milliseconds));
}

let grid = null, map = null, side = null;
const parts = {};

function buildViews() {
  const stage = find("#stage"), tabs = find("#tabs");
  state.sections = {};
  for (const [name, [title, has]] of Object.entries(VIEWS)) {
    if (!has(state.record)) continue;
    const tab = make("button", { type: "button", role: "tab", "data-view": name }, title);
    tab.addEventListener("click", () => { state.view = name; state.show(); });
    tabs.append(tab);
    state.sections[name] = name === "map" ? find("#map-view")
      : make("section", { id: `${name}-view`, role: "tabpanel" });
    if (name !== "map") stage.append(state.sections[name]);
  }
  const built = { lines: HeadLines, offsets: Offsets, together: Together, difference: Difference, image: PictureView,
    steps: Steps };
  for (const [name, View] of Object.entries(built)) if (state.sections[name]) parts[name] =
    new View(state.sections[name]);
  parts.model = new ModelLines(state.sections.model, grid);
}

function pressed(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { "]": 1, "[": -1 }[event.key];
  if (step) {
    const cards = grid.cards;
    const now = cards.findIndex((card) => card.number === state.number && card.place === state.place);
    const next = cards[(now + step + cards.length) % cards.length];
    state.choose(next.number, next.place);
  } else if (["+", "=", "-", "0", "Escape"].includes(event.key) || event.key.startsWith("Arrow")) {
    if (state.view !== "map" || event.target.matches("button, a, summary, [role=button]")
      && event.key !== "Escape") return;
    map.press(event);
  } else return;
  event.preventDefault();
}

async function begin() {
  state.record = await openIndex();
  grid = new Grid(state.record, find("#heads"), (number, place) => state.choose(number, place));
  side = new Side(find("#side"));
  map = new MapView(find("#map"), state.shared, (what) => { state.shared.zoomed = true; state.changed(what); });
  new Buckets(find("#buckets"), map);
  buildViews();
  state.restore();
  await grid.open();
  find("#contrast").addEventListener("change", () => state.restyle());
  find("#fog").addEventListener("change", () => state.restyle());
  find("#fit").addEventListener("click", () => map.fit());
  document.addEventListener("keydown", pressed);
  onScheme(() => state.restyle());
  await state.show();
  document.documentElement.dataset.ready = "yes";
}

begin();
