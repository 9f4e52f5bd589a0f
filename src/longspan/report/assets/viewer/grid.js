// All layers and heads as thumbnails, by layer or in the order of a measure.

const MEASURES = {
  layer: ["layer and head", null],
  previous: ["weight on the previous token", (head) => head.sums.previous],
  next: ["weight on the next token", (head) => head.sums.next],
  self: ["weight on the token itself", (head) => head.sums.self],
  first: ["weight on the first token", (head) => head.sums.first],
  special: ["weight on special tokens", (head) => head.sums.special.reduce((sum, share) => sum + share, 0)],
  entropy: ["entropy (spread)", (head) => head.sums.mean_entropy],
  largest: ["largest weight", (head) => head.sums.largest],
  variation: ["error: total variation", (head) => head.difference?.errors.variation],
  output: ["error of the output", (head) => head.difference?.errors.output],
};

class Grid {
  constructor(record, root, choose) {
    Object.assign(this, { record, root, choose, sheets: new Map() });
    const measures = Object.entries(MEASURES).filter(([name, [, read]]) =>
      !read || record.modules.some((module) => module.heads.some((head) => Number.isFinite(read(head))
        && (name !== "special" || head.sums.special.length))));
    this.order = make("select", { "aria-label": "order of the heads" },
      ...measures.map(([name, [title]]) => make("option", { value: name }, title)));
    this.order.addEventListener("change", () => { this.arrange(); state.save(); });
    this.pooling = make("select", { "aria-label": "what a cell shows" },
      make("option", { value: "max" }, "largest of a cell"), make("option", { value: "mean" }, "mean of a cell"));
    this.pooling.addEventListener("change", () => state.restyle());
    this.box = make("div", { class: "thumbs" });
    root.replaceChildren(make("div", { class: "bar" }, make("label", {}, "sort by ", this.order),
      make("label", {}, "show ", this.pooling)), this.box);
  }

  async open() {
    this.cards = [];
    for (const [number, module] of this.record.modules.entries()) {
      for (const [place, head] of module.heads.entries()) this.cards.push(await this.card(number, module, place, head));
    }
    this.restyle();
    this.arrange();
  }

  async card(number, module, place, head) {
    const level = head.pyramid.levels.at(-1);
    const opened = { rows: level.shape[0], columns: level.shape[1], max: await openArray(level.max),
      mean: await openArray(level.mean), low: await openArray(level.low) };
    const canvas = make("canvas", { width: level.shape[1], height: level.shape[0] });
    const note = make("small");
    const button = make("button", { type: "button", class: "thumb" + (head.detail ? "" : " rough"),
      "data-module": number, "data-head": place },
      canvas, make("b", {}, `${module.layer}.${head.index}`), note);
    button.addEventListener("click", () => this.choose(number, place));
    return { number, module, place, head, level: opened, canvas, note, button };
  }

  restyle() {
    for (const { canvas, level, head, module } of this.cards) {
      const columns = this.record.axes[module.keys].tokens.length;
      const scale = head.pyramid.scale;
      const palette = new Palette({ largest: Math.min(head.sums.largest ?? 1, scale), scale, columns },
        state.shared.contrast);
      canvas.getContext("2d").drawImage(levelSheet(level, palette, this.pooling.value), 0, 0);
    }
  }

  arrange() {
    const name = this.order.value;
    const [title, read] = MEASURES[name];
    const parts = [];
    if (!read) {
      for (const [number, module] of this.record.modules.entries()) {
        const own = this.cards.filter((card) => card.number === number);
        const label = make("h3", {}, module.title, " ", make("small", {}, module.mechanism));
        parts.push(label, own.length ? make("div", { class: "row" }, ...own.map((card) => card.button))
          : make("p", { class: "quiet" }, module.sentence));
      }
    } else {
      const sorted = [...this.cards].sort((one, other) => (read(other.head) ?? -1) - (read(one.head) ?? -1));
      parts.push(make("div", { class: "row" }, ...sorted.map((card) => card.button)));
    }
    for (const { head, module, note, button } of this.cards) {
      const value = read ? spell(read(head), 2) : "";
      note.textContent = value;
      button.setAttribute("aria-label", `${module.title}, head ${head.index}${read ? `, ${title} ${value}` : ""}`);
      button.title = `${module.title}, head ${head.index}`
        + (head.detail ? "" : ": without exact weights, which did not fit");
    }
    this.box.replaceChildren(...parts);
  }

  mark(number, place) {
    for (const card of this.cards) {
      card.button.setAttribute("aria-pressed", String(card.number === number && card.place === place));
    }
  }
}
