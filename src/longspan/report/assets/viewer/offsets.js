// Mean weight by distance: windows, previous-token heads and strides show as peaks.

class Offsets {
  constructor(root) {
    this.note = make("p", { class: "readout", role: "status" }, "Point at a mark for its number.");
    this.box = make("div", { class: "offsets" });
    root.append(make("p", { class: "quiet" },
      "Mean weight by key − query. Dashed: the mean if every row were even."), this.box, this.note);
  }

  async show(source) {
    const { module, head } = state.current();
    if (!source || !head) {
      this.box.replaceChildren(make("p", { class: "quiet" }, "Choose a single head: distances are counted for heads."));
      return;
    }
    const sums = await openArray(head.sums.offsets);
    if (head !== state.current().head) return;
    const [rows, columns] = [source.rows, source.columns];
    const points = [];
    for (let index = 0; index < sums.length; index++) {
      const offset = index - (rows - 1);
      if (module.causal && offset > 0) continue;
      const pairs = Math.min(rows, columns - offset) - Math.max(0, -offset); // queries that have a key at this offset
      if (pairs > 0) points.push([offset, sums[index] / pairs]);
    }
    this.box.replaceChildren(this.chart(points, module, columns));
  }

  chart(points, module, columns) {
    const [width, height, left, bottom] = [720, 340, 60, 34];
    const far = Math.max(...points.map(([offset]) => Math.abs(offset)), 1);
    const fold = (offset) => (far <= 64 ? offset : Math.sign(offset) * Math.log2(1 + Math.abs(offset)));
    const [least, most] = [fold(points[0][0]), fold(points.at(-1)[0])];
    const x = (offset) => left + ((width - left - 12) * (fold(offset) - least)) / Math.max(1e-9, most - least);
    const sizes = points.map(([, value]) => Math.abs(value)).filter((value) => value > 0);
    const even = module.causal ? range(1, columns + 1).reduce((sum, keys) => sum + 1 / keys, 0) / columns : 1 / columns;
    const high = Math.log10(Math.max(...sizes, even)) + 0.1;
    const low = Math.max(high - 5, Math.min(high - 1.5, Math.log10(Math.min(...sizes, even)) - 0.2));
    const y = (value) => height - bottom - ((height - bottom - 10) * Math.max(0,
      Math.log10(Math.max(Math.abs(value), 1e-12)) - low)) / (high - low);
    const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "mean weight by distance" });
    for (let power = Math.ceil(low); power <= high; power++) {
      chart.append(draw("line", { x1: left, x2: width - 12, y1: y(10 ** power), y2: y(10 ** power), class: "rule" }),
        draw("text", { x: left - 6, y: y(10 ** power) + 4, class: "end quiet" }, spell(10 ** power)));
    }
    chart.append(draw("line", { x1: left, x2: width - 12, y1: y(even), y2: y(even), class: "even" }));
    const ticks = [0, 1, 2, 4, 8, 16, 64, 256, 1024, 4096, 16384].flatMap((size) => (size ? [-size, size] : [0]));
    for (const tick of ticks) {
      if (tick < points[0][0] || tick > points.at(-1)[0]
        || (far <= 64 && ![0, 4, 8, 16, 32, 64].includes(Math.abs(tick)))) continue;
      chart.append(draw("text", { x: x(tick), y: height - 12, class: "middle quiet" }, String(tick)));
    }
    const keep = points.length <= 800 ? points : thinned(points, x);
    chart.append(draw("path", { d: keep.map(([offset, value], index) =>
      `${index ? "L" : "M"}${x(offset).toFixed(1)},${y(value).toFixed(1)}`).join(""), class: "curve" }));
    for (const [offset, value] of keep) {
      chart.append(draw("circle", { cx: x(offset).toFixed(1), cy: y(value).toFixed(1), r: 3, class: value < 0
        ? "spot negative" : "spot" },
        draw("title", {}, `offset ${offset}: ${spell(value)}`)));
    }
    chart.addEventListener("pointermove", (event) => {
      const title = event.target.querySelector?.("title");
      if (title && event.target.tagName === "circle") this.note.textContent = title.textContent;
    });
    return chart;
  }
}

// The largest of each pixel, where points are denser than pixels.
function thinned(points, x) {
  const best = new Map();
  for (const point of points) {
    const pixel = Math.round(x(point[0]) / 1.5);
    if (!best.has(pixel) || Math.abs(point[1]) > Math.abs(best.get(pixel)[1])) best.set(pixel, point);
  }
  return [...best.values()];
}
