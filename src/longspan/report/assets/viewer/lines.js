// Lines from queries to keys: of one head, and small ones of all heads.

const MOST_LINES = 20; // of a chosen token
const MOST_ALL = 2000;
const FEW = 72; // tokens that are listed whole
const AROUND = 14; // queries shown on each side of the chosen one in long texts
const ROW = 18;

class HeadLines {
  constructor(root) {
    this.root = root;
    this.note = make("p", { class: "readout", role: "status" });
    this.box = make("div", { class: "lines" });
    root.append(this.note, this.box);
  }

  show(source) {
    if (!source) return;
    const { query, key } = state.shared;
    const short = Math.max(source.rows, source.columns) <= FEW;
    const way = this.way === "key" && key !== null ? "key" : "query";
    const chosen = way === "key" ? key : query;
    let links = [];
    let shown = "";
    if (chosen === null && short) links = this.everything(source);
    else {
      const middle = chosen ?? 0;
      const line = source.byCells(way === "key" ? source.column(middle) : source.row(middle));
      const best = strongest(line, MOST_LINES);
      links = best.places.map((place) => (way === "key" ? [place, middle, line[place]] : [middle, place, line[place]]));
      const verb = way === "key" ? "is read most by" : "reads most from";
      const what = source.coarse > 1 ? `places, each of ${source.coarse} tokens` : "tokens";
      shown = `${named(way === "key" ? source.keys : source.queries, middle)} ${verb} ${best.places.length} ${what}: ` +
        `${percent(best.share)} of the weight is shown.`;
    }
    if (!shown) {
      const all = links.reduce((sum, link) => sum + Math.abs(link[2]), 0);
      shown = `The ${links.length} largest weights of all tokens; choose a token for its own. ` +
        `${percent(all / Math.max(1e-9, this.total))} of the weight is shown.`;
    }
    this.note.textContent = shown + (source.exact ? "" : " Approximate: this head has no exact weights in the page.");
    const rows = short ? range(0, source.rows) : way === "key" ? spread(links.map((link) => link[0]))
      : range(Math.max(0, chosen - AROUND), Math.min(source.rows, chosen + AROUND + 1));
    const columns = short ? range(0, source.columns) : way === "key" ? range(Math.max(0, chosen - AROUND),
      Math.min(source.columns, chosen + AROUND + 1)) : spread(links.map((link) => link[1]));
    this.box.replaceChildren(this.picture(source, rows, columns, links));
  }

  everything(source) {
    const links = [];
    this.total = 0;
    for (let query = 0; query < source.rows; query++) {
      source.row(query).forEach((weight, key) => {
        this.total += Math.abs(weight);
        if (Math.abs(weight) > 0.01) links.push([query, key, weight]);
      });
    }
    return links.sort((one, other) => Math.abs(other[2]) - Math.abs(one[2])).slice(0, MOST_ALL);
  }

  picture(source, rows, columns, links) {
    const width = 620, left = 190, right = 430;
    const height = ROW * Math.max(rows.length, columns.length) + 30;
    const at = (list) => new Map(list.map((token, index) => [token, 30 + ROW * index]));
    const [above, below] = [at(rows), at(columns)];
    const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": "lines from queries to keys" });
    chart.append(draw("text", { x: left, y: 12, class: "end quiet" }, "queries"),
      draw("text", { x: right, y: 12, class: "quiet" }, "keys"));
    const most = links.reduce((best, link) => Math.max(best, Math.abs(link[2])), 1e-9);
    for (const [query, key, weight] of [...links].reverse()) {
      if (!above.has(query) || !below.has(key)) continue;
      const share = Math.abs(weight) / most;
      const line = draw("line", { x1: left + 6, y1: above.get(query), x2: right - 6, y2: below.get(key),
        class: weight < 0 ? "link negative" : "link",
        "stroke-width": (0.6 + 5 * share).toFixed(2), "stroke-opacity": (0.15 + 0.8 * Math.sqrt(share)).toFixed(2) });
      line.append(draw("title", {},
        source.sentence(query, key)));
      chart.append(line);
    }
    this.names(chart, source.queries.tokens, above, left, "end", "query");
    this.names(chart, source.keys.tokens, below, right, "", "key");
    return chart;
  }

  names(chart, tokens, places, x, css, way) {
    for (const [token, y] of places) {
      const chosen = this.way === "key" ? way === "key" && state.shared.key === token : way === "query"
        && state.shared.query === token;
      const label = draw("text", { x, y: y + 4, class: `token ${css} ${chosen ? "chosen" : ""}`, tabindex: 0,
        role: "button" },
        `${clipped(shownToken(tokens[token]), 18)} `, draw("tspan", { class: "quiet" }, String(token)));
      const choose = () => {
        this.way = way;
        Object.assign(state.shared, { [way]: token, locked: true });
        if (state.shared.query === null) state.shared.query = 0;
        if (state.shared.key === null) state.shared.key = 0;
        state.changed("cell");
      };
      label.addEventListener("click", choose);
      label.addEventListener("keydown", (event) =>
        { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
      chart.append(label);
    }
  }
}

const range = (begin, end) => Array.from({ length: Math.max(0, end - begin) }, (_, index) => begin + index);
const spread = (places) => [...new Set(places)].sort((one, other) => one - other);

// One small picture for each head: lines from cells of queries to cells of keys, of the chosen query or of all.
class ModelLines {
  constructor(root, grid) {
    this.grid = grid;
    this.note = make("p", { class: "quiet" });
    this.box = make("div", { class: "model-lines" });
    root.append(this.note, this.box);
  }

  show() {
    const { query } = state.shared;
    this.note.textContent = query === null
      ? "Each picture is a head: lines go from queries (left) to keys (right), top to bottom in the order of the text. " +
        "Choose a token for its lines alone."
      : `Each picture is a head: what query ${query} reads.`;
    const parts = [];
    let last = null;
    for (const card of this.grid.cards) {
      if (card.number !== last) parts.push(make("h3", {}, card.module.title));
      last = card.number;
      const canvas = make("canvas", { width: 128, height: 184 });
      this.paint(canvas, card, query);
      const button = make("button",
        { type: "button", class: "thumb", "aria-label": `${card.module.title}, head ${card.head.index}` },
        canvas, make("b", {}, `${card.module.layer}.${card.head.index}`));
      button.addEventListener("click", () => state.choose(card.number, card.place, "lines"));
      parts.push(button);
    }
    this.box.replaceChildren(...parts);
  }

  paint(canvas, { level, head, module }, query) {
    const context = canvas.getContext("2d");
    const { cell } = head.pyramid.levels.at(-1);
    const [up, down] = [colourOf("--up"), colourOf("--bad")].map((colour) => colour.join(" "));
    const only = query === null || query >= state.record.axes[module.queries].tokens.length ? null
      : Math.floor(query / cell);
    const thin = only === null ? Math.max(0.35, Math.min(1, 20 / level.rows)) : 1;
      // many lines must not become a surface
    const place = (index, count) => 3 + ((index + 0.5) / count) * (canvas.height - 6);
    for (let row = 0; row < level.rows; row++) {
      if (only !== null && row !== only) continue;
      const line = level.max.subarray(row * level.columns, (row + 1) * level.columns);
      const lows = level.low?.subarray(row * level.columns, (row + 1) * level.columns);
      const most = DECODED[Math.max(...line, ...(lows ?? []))];
      const sharp = only === null ? 0.12 + 0.88 * Math.min(1, 4 * most) : 1; // rows that read evenly stay pale
      for (let column = 0; most > 0 && column < level.columns; column++) {
        const code = line[column], low = lows?.[column] ?? 0;
        const share = DECODED[Math.max(code, low)] / most;
        if (share < (only === null ? 0.3 : 0.02)) continue;
        const strength = only === null ? sharp * thin * share ** 2 : Math.sqrt(share);
        context.strokeStyle = `rgb(${low > code ? down : up} / ${Math.round(100 * strength)}%)`;
        context.lineWidth = (0.6 + 2.4 * share * sharp) * thin;
        context.beginPath();
        context.moveTo(3, place(row, level.rows));
        context.lineTo(canvas.width - 3, place(column, level.columns));
        context.stroke();
      }
    }
  }
}
