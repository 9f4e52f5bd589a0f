// Several maps side by side, with one window and one cell in common: differences, and what all heads do together.

class Several {
  constructor(root) {
    this.box = make("div", { class: "several" });
    this.says = make("p", { class: "readout", role: "status" });
    root.append(this.says, this.box);
    this.shared = { x: 0, y: 0, size: null, query: null, key: null, locked: false, fog: false, pooling: "max",
      contrast: "log" };
    this.maps = [];
  }

  async show(sources) {
    Object.assign(this.shared, { pooling: state.shared.pooling, contrast: state.shared.contrast });
    const known = sources.map((source) => source.title).join("|");
    if (this.known !== known) {
      this.known = known;
      this.maps = [];
      Object.assign(this.shared, { x: 0, y: 0, size: null });
      this.box.replaceChildren(...sources.map((source) => {
        const canvas = make("canvas", { class: "map", role: "img", "aria-label": source.title });
        const legend = make("div", { class: "legend" });
        const map = new MapView(canvas, this.shared, (what) => this.changed(what));
        map.legend = legend;
        this.maps.push(map);
        return make("figure", {}, make("figcaption", {}, source.title), canvas, legend);
      }));
    }
    await Promise.all(this.maps.map((map, index) => map.show(sources[index])));
    for (const map of this.maps) drawLegend(map.legend, map);
    this.changed("cell");
  }

  changed() {
    for (const map of this.maps) map.request();
    const { query, key } = this.shared;
    const [first] = this.maps;
    if (query === null || key === null || !first?.source) {
      this.says.textContent = "Pan and zoom move all maps. Point at a cell for its numbers.";
      return;
    }
    const { queries, keys } = first.source;
    this.says.textContent = `query ${named(queries, query)}, key ${named(keys, key)}: ` +
      this.maps.map((map) => `${map.source.short} ${map.source.spelledWeight(query, key)}`).join(", ");
  }

  restyle() { for (const map of this.maps) { map.restyle(); drawLegend(map.legend, map); } }
}

// Exact attention, this mechanism, and what differs.
class Difference {
  constructor(root) {
    this.table = make("div", { class: "scroll" });
    this.lengths = make("div");
    root.append(make("p", { class: "quiet" },
      "The same queries, keys and values under both. Red: less weight than exact, blue: more."));
    this.several = new Several(root);
    root.append(this.table, this.lengths);
  }

  async show() {
    const { module, head, number, place } = state.current();
    const found = head?.difference;
    this.table.replaceChildren();
    if (!found) {
      this.table.append(make("p", { class: "quiet" }, "This head has no exact map beside it."));
      return;
    }
    const axes = { queries: state.record.axes[module.queries], keys: state.record.axes[module.keys] };
    const exact = new Source({ ...axes, title: `exact: ${state.record.against}`, pyramid: found.exact,
      detail: found.exact_detail });
    const ours = new Source({ ...axes, title: `this: ${module.mechanism}`, pyramid: head.pyramid,
      detail: head.detail, signed: module.signed });
    const change = new Source({ ...axes, title: "this − exact", pyramid: found.change,
      minus: [head.detail, found.exact_detail], signed: true });
    exact.short = "exact";
    ours.short = "this";
    change.short = "difference";
    this.several.known = this.several.head === `${number} ${place}` ? this.several.known : null;
    this.several.head = `${number} ${place}`;
    await this.several.show([exact, ours, change]);
    this.table.replaceChildren(errorTable(found));
    await this.byLength(number, place);
  }

  async byLength(number, place) {
    const stored = state.record.by_length;
    if (!stored) return;
    const errors = await openArray(stored.errors);
    const [, modules, heads, kinds] = stored.errors[3];
    const names = ["row KL", "total variation", "output", "same largest key", "where exact has none"];
    const rows = stored.lengths.map((length, index) => make("tr", {}, make("td", {}, length.toLocaleString("en")),
      ...names.map((_, kind) => make("td", { class: "number" },
        spell(errors[((index * modules + number) * heads + place) * kinds + kind])))));
    this.lengths.replaceChildren(make("h3", {}, "By length of the text"),
      make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "tokens"),
        ...names.map((name) => make("th", { class: "number" }, name)))), make("tbody", {}, ...rows))));
  }
}

function errorTable(found) {
  const kinds = [["kl", "row KL, nats"], ["variation", "total variation"], ["output", "error of the output"],
    ["top1", "same largest key"], ["nowhere", "weight where exact has none"]];
  const line = (name, errors) => make("tr", {}, make("td", {}, name),
    ...kinds.map(([kind]) => make("td", { class: "number" }, spell(errors[kind]))));
  const count = found.blocks.length;
  return make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "rows"),
    ...kinds.map(([, title]) => make("th", { class: "number" }, title)))),
    make("tbody", {}, line("all", found.errors),
      ...(count > 1 ? found.blocks.map((errors, index) => line(`part ${index + 1} of ${count}`, errors)) : []),
      line("control: exact with its keys permuted", found.control)));
}

// Mean and maximum over heads, and rollout beside its control.
class Together {
  constructor(root) {
    this.layer = make("input", { type: "range", min: 0, step: 1, id: "rollout-layer" });
    this.label = make("output");
    this.bar = make("div", { class: "bar" }, make("label", { for: "rollout-layer" }, "rollout after layer "),
      this.layer, this.label);
    this.note = make("p", { class: "quiet" });
    root.append(this.bar, this.note);
    this.several = new Several(root);
    this.layer.addEventListener("input", () => this.show());
    this.sources = new Map();
  }

  async show() {
    const { module, number } = state.current();
    const axes = { queries: state.record.axes[module.queries], keys: state.record.axes[module.keys] };
    const sources = [];
    for (const [name, title] of [["mean", "mean over heads"], ["max", "largest over heads"]]) {
      if (!module[name]) continue;
      const source = new Source({ ...axes, title: `${title}, ${module.title}`, pyramid: module[name],
        signed: module.signed });
      source.short = name;
      sources.push(source);
    }
    const rollout = module.kind === "self" ? state.record.rollouts.find((found) => found.side === module.side) : null;
    this.bar.hidden = !rollout;
    this.note.textContent = rollout
      ? "Rollout multiplies the mean maps of all layers, with the residual stream: what a state holds of the inputs. " +
        "Its control is the rollout of even maps. It follows weights only; it does not say what decides the answer."
      : "No rollout: maps of this side do not multiply to one.";
    if (rollout) {
      const { layers } = rollout; // those that were kept
      if (this.side !== module.side) {
        this.layer.max = layers.length - 1;
        this.layer.value = Math.max(0, layers.indexOf(module.layer));
        this.side = module.side;
      }
      this.label.textContent = layers[this.layer.value];
      const axis = state.record.axes[rollout.axis];
      sources.push(await matrixSource(rollout, axis, Number(this.layer.value), "rollout"));
      sources.push(await matrixSource(rollout, axis, null, "rollout of even maps"));
    }
    this.several.known = this.several.number === number ? this.several.known : null;
    this.several.number = number;
    await this.several.show(sources);
  }

  restyle() { this.several.restyle(); }
}

// A source from a whole matrix of float weights, in cells of `cell` tokens.
async function matrixSource(rollout, axis, layer, title) {
  const all = await openArray(layer === null ? rollout.uniform : rollout.weights);
  const shape = (layer === null ? rollout.uniform : rollout.weights)[3].slice(-2);
  const [rows, columns] = shape;
  const weights = layer === null ? all : all.subarray(layer * rows * columns, (layer + 1) * rows * columns);
  const codes = Uint8Array.from(weights, codeOf);
  const source = new Source({ title: layer === null ? title : `${title} after layer ${rollout.layers[layer]}`,
    queries: axis,
    keys: axis, pyramid: { scale: 1, levels: [] } });
  source.short = layer === null ? "even" : "rollout";
  source.levels = [{ cell: rollout.cell, rows, columns, max: codes, mean: codes, low: null }];
  source.largest = weights.reduce((most, weight) => Math.max(most, weight), 0);
  if (rollout.cell === 1) source.detail = Object.assign(new Detail(), { kind: "dense", weights, width: columns });
  source.opening = Promise.resolve(source);
  return source;
}

function drawLegend(root, map) {
  const { palette, source } = map;
  if (!palette) return;
  const canvas = make("canvas", { width: 180, height: 12, role: "img", "aria-label": "colours of weights" });
  const context = canvas.getContext("2d");
  const { up, down } = RAMPS[isDark() ? "dark" : "light"];
  const both = source.signed || source.levels.some((level) => level.low);
  for (let x = 0; x < 180; x++) {
    const share = both ? Math.abs(x - 90) / 90 : x / 179;
    const [red, green, blue] = ramp(both && x < 90 ? down : up, share);
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(x, 0, 1, 12);
  }
  const middle = palette.contrast === "linear" ? palette.high / 2 : Math.sqrt(palette.low * palette.high);
  const marks = both ? [`−${spell(palette.high, 2)}`, "0", spell(palette.high, 2)]
    : [palette.contrast === "linear" ? "0" : `≤ ${spell(palette.low, 2)}`, spell(middle, 2), spell(palette.high, 2)];
  root.replaceChildren(make("div", { class: "scale" }, canvas,
    make("div", { class: "marks" }, ...marks.map((mark) => make("span", {}, mark)))));
}
