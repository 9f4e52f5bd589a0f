// Which bucket, cluster or block each token is in, one row for each round: tokens of one colour can read each other.

class Buckets {
  constructor(root, map) {
    this.canvas = make("canvas", { class: "buckets", role: "img", "aria-label": "buckets of the tokens" });
    this.says = make("p", { class: "quiet" });
    Object.assign(this, { root, map });
    root.append(this.canvas, this.says);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    map.drawnOnce = () => this.draw();
  }

  draw() {
    const { source, shared } = this.map;
    const pattern = source?.pattern;
    this.root.hidden = !pattern?.buckets;
    if (!pattern?.buckets || !shared.size) return;
    const { left, wide } = this.map.layout();
    const ratio = devicePixelRatio || 1;
    const high = 8;
    Object.assign(this.canvas, { width: Math.round(wide * ratio), height: Math.round(high * pattern.rounds * ratio) });
    this.canvas.style.marginLeft = `${left}px`;
    this.canvas.style.width = `${wide}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const count = pattern.buckets.length / pattern.rounds;
    const step = Math.max(1, shared.size);
    const light = isDark() ? 62 : 45;
    for (let round = 0; round < pattern.rounds; round++) {
      for (let x = 0; x < wide; x += step) {
        const token = Math.floor(shared.x + x / shared.size);
        if (token >= count) break;
        const bucket = pattern.buckets[round * count + token];
        if (bucket < 0) continue;
        context.fillStyle = `hsl(${(bucket * 137.5) % 360} 65% ${light}%)`;
        context.fillRect(x, round * high, step + 0.5, high - 1);
      }
    }
    this.says.textContent = "Buckets of the keys above, one row for each round. Point at one for its number.";
  }

  point(event) {
    const { source, shared } = this.map;
    const { pattern } = source;
    const count = pattern.buckets.length / pattern.rounds;
    const token = Math.floor(shared.x + event.offsetX / shared.size);
    const round = Math.min(pattern.rounds - 1, Math.max(0, Math.floor(event.offsetY / 8)));
    if (token >= count) return;
    const bucket = pattern.buckets[round * count + token];
    let same = 0;
    for (let other = 0; other < count; other++) same += pattern.buckets[round * count + other] === bucket;
    const where = bucket < 0 ? "in no bucket" : `in bucket ${bucket} with ${same - 1} others`;
    this.says.textContent = `key ${named(source.keys, token)}, round ${round}: ${where}`;
  }
}
