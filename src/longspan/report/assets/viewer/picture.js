// The image that a vision model read, with what a patch reads laid over it.

class PictureView {
  constructor(root) {
    this.canvas = make("canvas", { class: "picture", tabindex: 0, role: "img",
      "aria-label": "the image; arrow keys move over its patches" });
    this.says = make("p", { class: "readout", role: "status" });
    this.strength = make("input", { type: "range", min: 0, max: 100, value: 72, id: "overlay" });
    this.whole = make("button", { type: "button" }, "class token");
    this.distance = make("p", { class: "quiet" });
    root.append(make("div", { class: "bar" }, this.whole, make("label", { for: "overlay" }, "overlay "),
      this.strength), this.canvas, this.says, this.distance);
    this.strength.addEventListener("input", () => this.show(this.source));
    this.whole.addEventListener("click", () => this.pick(0));
    this.canvas.addEventListener("pointermove", (event) =>
      { if (!state.shared.locked) this.pick(this.patchAt(event), false); });
    this.canvas.addEventListener("click", (event) => this.pick(this.patchAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  patchAt(event) {
    const { rows, columns, first } = state.record.picture;
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.offsetX / this.canvas.clientWidth) * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor((event.offsetY / this.canvas.clientHeight) * rows)));
    return first + row * columns + column;
  }

  pick(position, lock = true) {
    Object.assign(state.shared, { query: position, key: state.shared.key ?? position, locked: lock });
    state.changed("cell");
  }

  press(event) {
    const { columns, first, rows } = state.record.picture;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (event.key === "Escape") { state.shared.locked = false; state.changed("cell"); }
    else if (event.key in steps) this.pick(Math.max(first, Math.min(first + rows * columns - 1,
      Math.max(first, state.shared.query ?? first) + steps[event.key])));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async show(source) {
    this.source = source;
    const { picture } = state.record;
    const { module } = state.current();
    if (!source || module.keys !== "image") {
      this.says.textContent = "This attention does not read patches of the image.";
      return;
    }
    const [height, width] = picture.pixels[3];
    const bytes = await openArray(picture.pixels);
    if (!this.image) {
      this.image = new OffscreenCanvas(width, height);
      const image = new ImageData(width, height);
      for (let place = 0; place < width * height; place++) image.data.set([bytes[3 * place], bytes[3 * place + 1],
        bytes[3 * place + 2], 255], 4 * place);
      this.image.getContext("2d").putImageData(image, 0, 0);
    }
    const { rows, columns, first } = picture;
    const query = state.shared.query ?? 0;
    const line = source.row(query);
    const factor = Math.max(1, Math.floor(640 / width));
    Object.assign(this.canvas, { width: width * factor, height: height * factor });
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    let most = 1e-9, onPatches = 0;
    for (let patch = 0; patch < rows * columns; patch++) { most = Math.max(most, Math.abs(line[first + patch]));
      onPatches += line[first + patch]; }
    const [wide, high] = [this.canvas.width / columns, this.canvas.height / rows];
    const strength = this.strength.value / 100;
    for (let patch = 0; patch < rows * columns; patch++) {
      const [red, green, blue] = ramp(["#0b0d1c", "#40206a", "#a3325c", "#ee7a35", "#fbe874"],
        Math.abs(line[first + patch]) / most);
      context.fillStyle = `rgb(${red} ${green} ${blue} / ${Math.round(100 * strength)}%)`;
      context.fillRect((patch % columns) * wide, Math.floor(patch / columns) * high, wide + 0.5, high + 0.5);
    }
    const own = query - first;
    if (own >= 0 && own < rows * columns) {
      context.strokeStyle = "#fff";
      context.lineWidth = Math.max(2, wide / 12);
      context.strokeRect((own % columns) * wide, Math.floor(own / columns) * high, wide, high);
    }
    const name = own < 0 ? `“${shownToken(source.queries.tokens[query])}”`
      : `patch ${Math.floor(own / columns)}, ${own % columns}`;
    this.says.textContent = `${name} reads: brightest patch ${spell(most)}, ` +
      `all patches ${percent(onPatches)} of its weight.`;
    this.distance.textContent = this.distances(source);
  }

  // Mean distance between a patch and what it reads, in patches.
  distances(source) {
    const { rows, columns, first } = state.record.picture;
    const count = rows * columns;
    if (count > 900) return "";
    let read = 0, mass = 0, even = 0;
    for (let query = 0; query < count; query++) {
      const line = source.row(first + query);
      for (let key = 0; key < count; key++) {
        const apart = Math.hypot((query % columns) - (key % columns),
          Math.floor(query / columns) - Math.floor(key / columns));
        read += Math.abs(line[first + key]) * apart;
        mass += Math.abs(line[first + key]);
        even += apart;
      }
    }
    return `Mean distance of what patches read: ${spell(read / Math.max(mass, 1e-9))} patches; ` +
      `${spell(even / count ** 2)} if they read all evenly.`;
  }
}
