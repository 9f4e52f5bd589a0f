// A map on a canvas: zoom and pan over all cells. From the pyramid when cells are small, from tiles of exact weights when
// they are large. Tiles are computed between frames.

const TILE = 128; // cells of a tile's side
const SLICE = 8; // milliseconds of computing in a frame
const MOST_TILES = 192;
const DETAIL_FROM = 0.75; // pixels of a cell from which on tiles are drawn
const LABELS_FROM = 8; // pixels of a cell from which on tokens are written

class MapView {
  // `shared` is what linked maps have in common: { x, y, size, query, key, locked, fog, pooling, contrast }.
  constructor(canvas, shared, changed) {
    Object.assign(this, { canvas, shared, changed, source: null, tiles: new Map(), wanted: [], drawn: false });
    canvas.tabIndex = 0;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.zoomAt(event.offsetX, event.offsetY, event.shiftKey ? 0.5 : 2));
    canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.request()).observe(canvas);
    this.pointers = new Map();
  }

  async show(source) {
    await source.open();
    this.source = source;
    this.restyle();
  }

  restyle() {
    if (!this.source) return;
    this.palette = new Palette(this.source, this.shared.contrast);
    this.sheets = new Map();
    this.tiles.clear();
    this.request();
  }

  // Sizes in CSS pixels: the margins hold the labels.
  layout() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const small = width < 360;
    const left = small ? 34 : 76, top = small ? 34 : 62;
    return { width, height, left, top, wide: Math.max(1, width - left - 4), high: Math.max(1, height - top - 4) };
  }

  fitSize() {
    const { wide, high } = this.layout();
    return Math.min(wide / this.source.columns, high / this.source.rows);
  }

  fit() {
    Object.assign(this.shared, { x: 0, y: 0, size: null });
    this.changed("window");
  }

  bound() {
    const { shared, source } = this;
    const { wide, high } = this.layout();
    const least = this.fitSize();
    shared.size = Math.min(48, Math.max(least, shared.size ?? least));
    shared.x = Math.max(0, Math.min(shared.x, source.columns - wide / shared.size));
    shared.y = Math.max(0, Math.min(shared.y, source.rows - high / shared.size));
  }

  request() {
    if (this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => { this.drawn = false; this.draw(); });
  }

  draw() {
    const { source, canvas, shared } = this;
    const { width, height, left, top, wide, high } = this.layout();
    if (!source || !width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.bound();
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const { x, y, size } = shared;
    const right = Math.min(source.columns, x + wide / size), bottom = Math.min(source.rows, y + high / size);
    context.save();
    context.beginPath();
    context.rect(left, top, (right - x) * size, (bottom - y) * size);
    context.clip();
    context.translate(left - x * size, top - y * size);
    this.drawLevel(context, x, y, right, bottom, ratio);
    if (source.exact && size >= DETAIL_FROM && (source.levels[0].cell > 1 || size >= 2)) this.drawTiles(context, x,
      y, right, bottom);
    if (shared.fog && source.pattern?.known) this.drawFog(context, x, y, right, bottom);
    context.restore();
    this.drawFrame(context, { left, top, x, y, right, bottom, size });
    if (this.wanted.length) this.later();
    this.drawnOnce?.();
  }

  drawLevel(context, x, y, right, bottom, ratio) {
    const { source, shared } = this;
    const fine = source.levels.find((level) => level.cell * shared.size * ratio >= 0.9) ?? source.levels.at(-1);
    const name = `${fine.cell} ${shared.pooling}`;
    if (!this.sheets.has(name)) this.sheets.set(name, levelSheet(fine, this.palette, shared.pooling));
    context.imageSmoothingEnabled = fine.cell * shared.size * ratio < 1;
    const { cell } = fine;
    const [fromX, fromY] = [Math.floor(x / cell), Math.floor(y / cell)];
    const [toX, toY] = [Math.min(fine.columns, Math.ceil(right / cell)), Math.min(fine.rows, Math.ceil(bottom / cell))];
    const step = cell * shared.size;
    context.drawImage(this.sheets.get(name), fromX, fromY, toX - fromX, toY - fromY,
      fromX * step, fromY * step, (toX - fromX) * step, (toY - fromY) * step);
  }

  drawTiles(context, x, y, right, bottom) {
    const { shared } = this;
    context.imageSmoothingEnabled = shared.size < 1;
    this.wanted = [];
    for (let row = Math.floor(y / TILE); row * TILE < bottom; row++) {
      for (let column = Math.floor(x / TILE); column * TILE < right; column++) {
        const name = `${row} ${column}`;
        const tile = this.tiles.get(name);
        if (!tile) { this.wanted.push([row, column]); continue; }
        this.tiles.delete(name); // the last used is the last to leave
        this.tiles.set(name, tile);
        context.drawImage(tile, column * TILE * shared.size, row * TILE * shared.size, tile.width * shared.size,
          tile.height * shared.size);
      }
    }
    const middle = [(y + bottom) / 2 / TILE - 0.5, (x + right) / 2 / TILE - 0.5];
    const far = ([row, column]) => (row - middle[0]) ** 2 + (column - middle[1]) ** 2;
    this.wanted.sort((one, other) => far(other) - far(one)); // the nearest is taken first, from the end
  }

  later() {
    if (this.computing) return;
    this.computing = true;
    requestAnimationFrame(() => {
      this.computing = false;
      const until = performance.now() + SLICE;
      let any = false;
      while (this.wanted.length && performance.now() < until) { this.compute(...this.wanted.pop()); any = true; }
      if (any) this.request();
    });
  }

  compute(row, column) {
    const { source } = this;
    const [top, left] = [row * TILE, column * TILE];
    const [bottom, right] = [Math.min(source.rows, top + TILE), Math.min(source.columns, left + TILE)];
    const weights = source.tile(top, bottom, left, right);
    this.tiles.set(`${row} ${column}`, weightSheet(weights, bottom - top, right - left, this.palette, source.scale));
    if (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value);
  }

  // What could not be read is grey; a weight that is there all the same is a bug, in red.
  drawFog(context, x, y, right, bottom) {
    const { source, shared } = this;
    const { pattern } = source;
    const step = Math.max(1, 2 ** Math.ceil(Math.log2(2.5 / shared.size)));
    const grey = `rgb(${colourOf("--quiet").join(" ")} / 30%)`;
    const edge = `rgb(${colourOf("--ink").join(" ")} / 75%)`;
    const begin = (value) => Math.floor(value / step) * step;
    const wide = step * shared.size;
    context.lineWidth = 1;
    context.strokeStyle = edge;
    context.beginPath();
    for (let query = begin(y); query < bottom; query += step) {
      let run = null;
      for (let key = begin(x); key < right + step; key += step) {
        const inside = key < right;
        const could = inside && pattern.could(query, key, step);
        if (inside && !could && run === null) run = key;
        if ((could || !inside) && run !== null) {
          context.fillStyle = grey;
          context.fillRect(run * shared.size, query * shared.size, (key - run) * shared.size, wide);
          run = null;
        }
        if (inside && wide >= 2) {
          if (key > 0 && pattern.could(query, key - step, step) !== could) { context.moveTo(key * shared.size,
            query * shared.size); context.lineTo(key * shared.size, query * shared.size + wide); }
          if (query > 0 && pattern.could(query - step, key, step) !== could) { context.moveTo(key * shared.size,
            query * shared.size); context.lineTo(key * shared.size + wide, query * shared.size); }
        }
        if (inside && !could && step === 1 && Math.abs(source.weight(query, key)) > 1e-6) {
          context.fillStyle = `rgb(${colourOf("--bad").join(" ")})`;
          context.fillRect(key * shared.size, query * shared.size, wide, wide);
        }
      }
    }
    context.stroke();
  }

  drawFrame(context, { left, top, x, y, right, bottom, size }) {
    const { shared, source } = this;
    const ink = colourOf("--ink").join(" "), quiet = colourOf("--quiet").join(" ");
    context.strokeStyle = `rgb(${quiet} / 60%)`;
    context.lineWidth = 1;
    context.strokeRect(left - 0.5, top - 0.5, (right - x) * size + 1, (bottom - y) * size + 1);
    context.font = `${size >= LABELS_FROM ? Math.min(11, size + 1) : 11}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    this.drawLabels(context, { left, top, x, y, right, bottom, size, ink, quiet });
    const { query, key } = shared;
    if (query === null || key === null || key < x || key >= right || query < y || query >= bottom) return;
    const [atX, atY] = [left + (key - x) * size, top + (query - y) * size];
    context.fillStyle = `rgb(${ink} / 10%)`;
    const side = Math.max(size, 1);
    context.fillRect(left, atY, (right - x) * size, side);
    context.fillRect(atX, top, side, (bottom - y) * size);
    context.strokeStyle = shared.locked ? `rgb(${colourOf("--bad").join(" ")})` : `rgb(${ink})`;
    context.lineWidth = 1.5;
    context.strokeRect(atX - 1, atY - 1, side + 2, side + 2);
  }

  drawLabels(context, { left, top, x, y, right, bottom, size, ink, quiet }) {
    const { source, shared } = this;
    const words = size >= LABELS_FROM;
    const step = words ? 1 : niceStep(60 / size);
    const begin = (value) => Math.ceil((words ? Math.floor(value) : value) / step) * step;
    for (let query = begin(y); query < bottom; query += step) {
      const chosen = query === shared.query;
      context.fillStyle = `rgb(${chosen ? ink : quiet})`;
      context.textAlign = "right";
      const at = top + (query + (words ? 0.5 : 0) - y) * size;
      const label = words ? clipped(shownToken(source.queries.tokens[query]), left > 40 ? 11 : 3) : placeLabel(query);
      if (at > top - 2) context.fillText(label, left - 5, at);
    }
    for (let key = begin(x); key < right; key += step) {
      const at = left + (key + (words ? 0.5 : 0) - x) * size;
      if (at < left - 2) continue;
      context.fillStyle = `rgb(${key === shared.key ? ink : quiet})`;
      context.save();
      context.translate(at, top - 5);
      if (words) context.rotate(-Math.PI / 2.6);
      context.textAlign = words ? "left" : "center";
      context.fillText(words ? clipped(shownToken(source.keys.tokens[key]), top > 40 ? 10 : 4) : placeLabel(key), 0,
        words ? 0 : -4);
      context.restore();
    }
    context.fillStyle = `rgb(${quiet})`;
    context.textAlign = "left";
    if (!words && top > 40) { context.fillText("keys →", left, 12); context.fillText("queries ↓", 2, top - 14); }
  }

  // Pointers, wheel and keys.

  cellAt(event) {
    const { left, top } = this.layout();
    const { x, y, size } = this.shared;
    if (!this.source || size === null) return null;
    const key = Math.floor(x + (event.offsetX - left) / size), query = Math.floor(y + (event.offsetY - top) / size);
    if (key < 0 || query < 0 || key >= this.source.columns || query >= this.source.rows) return null;
    return event.offsetX < left || event.offsetY < top ? null : [query, key];
  }

  point(cell) {
    if (this.shared.locked) return;
    const [query, key] = cell ?? [null, null];
    if (query === this.shared.query && key === this.shared.key) return;
    Object.assign(this.shared, { query, key });
    this.changed("cell");
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    this.dragged = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.point(this.cellAt(event));
    if (this.pointers.size === 2) this.pinch(event, before);
    else {
      const [right, down] = [event.offsetX - before.offsetX, event.offsetY - before.offsetY];
      this.dragged += Math.abs(right) + Math.abs(down);
      this.pan(-right, -down);
    }
    this.pointers.set(event.pointerId, event);
  }

  pinch(event, before) {
    const other = [...this.pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId);
    const apart = (one) => Math.hypot(one.offsetX - other.offsetX, one.offsetY - other.offsetY);
    this.dragged += 10;
    this.zoomAt((event.offsetX + other.offsetX) / 2, (event.offsetY + other.offsetY) / 2,
      apart(event) / Math.max(1, apart(before)));
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    if (this.dragged > 4) return;
    const cell = this.cellAt(event);
    if (!cell) return;
    const same = this.shared.locked && cell[0] === this.shared.query && cell[1] === this.shared.key;
    Object.assign(this.shared, { query: cell[0], key: cell[1], locked: !same });
    this.changed("cell");
  }

  leave() {
    if (!this.pointers.size) this.point(null);
  }

  pan(right, down) {
    this.shared.x += right / this.shared.size;
    this.shared.y += down / this.shared.size;
    this.bound();
    this.changed("window");
  }

  wheel(event) {
    event.preventDefault();
    if (event.shiftKey) this.pan(event.deltaY + event.deltaX, 0);
    else this.zoomAt(event.offsetX, event.offsetY, Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)));
  }

  zoomAt(atX, atY, factor) {
    const { shared } = this;
    const { left, top } = this.layout();
    const [right, down] = [Math.max(0, atX - left), Math.max(0, atY - top)];
    const [key, query] = [shared.x + right / shared.size, shared.y + down / shared.size];
    shared.size = Math.min(48, Math.max(this.fitSize(), shared.size * factor));
    shared.x = key - right / shared.size;
    shared.y = query - down / shared.size;
    this.bound();
    this.changed("window");
  }

  press(event) {
    const { shared, source } = this;
    if (!source || event.ctrlKey || event.metaKey || event.altKey) return;
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const { left, top, wide, high } = this.layout();
    if (event.key in arrows) {
      const [down, right] = arrows[event.key].map((step) => step * (event.shiftKey ? 10 : 1));
      const within = (value, count) => Math.max(0, Math.min(count - 1, value));
      const begin = [Math.floor(shared.y), Math.floor(shared.x)];
      shared.query = within((shared.query ?? begin[0]) + down, source.rows);
      shared.key = within((shared.key ?? begin[1]) + right, source.columns);
      shared.locked = true;
      this.reveal(shared.query, shared.key);
      this.changed("cell");
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const factor = event.key === "-" ? 1 / 1.5 : 1.5;
      const known = shared.key !== null;
      this.zoomAt(known ? left + (shared.key + 0.5 - shared.x) * shared.size : left + wide / 2,
        known ? top + (shared.query + 0.5 - shared.y) * shared.size : top + high / 2, factor);
    } else if (event.key === "0") this.fit();
    else if (event.key === "Escape") {
      Object.assign(shared, { locked: false, query: null, key: null });
      this.changed("cell");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Moves the window so that a cell is in it.
  reveal(query, key) {
    const { shared } = this;
    const { wide, high } = this.layout();
    const [across, along] = [wide / shared.size, high / shared.size];
    if (key < shared.x) shared.x = key; else if (key + 1 > shared.x + across) shared.x = key + 1 - across;
    if (query < shared.y) shared.y = query; else if (query + 1 > shared.y + along) shared.y = query + 1 - along;
    this.bound();
  }
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least) ?? 10 * power);
}
const placeLabel = (place) => (place >= 1000 && place % 100 === 0 ? `${place / 1000}k` : String(place));
const clipped = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
