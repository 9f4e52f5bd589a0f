// Weights of a record: pyramids give any part of a map roughly, details give any cell exactly.

const DECADES = 6;
const STEPS = 254;
const DECODED = Float32Array.from({ length: 256 }, (_, code) => (code ? 10 ** ((-DECADES * (255 - code)) / STEPS) : 0));

function codeOf(size) {
  if (!(size > 0)) return 0;
  const place = 255 + (Math.log10(size) * STEPS) / DECADES;
  return place < 0.5 ? 0 : Math.max(1, Math.min(255, Math.round(place)));
}

function allowed(rule, query, key) {
  if ((rule.causal && key > query) || (rule.readable && !rule.readable[key])) return false;
  if (rule.everywhere && (rule.everywhere[query] || rule.everywhere[key])) return true;
  const lag = query - key;
  return (rule.before === null || lag <= rule.before) && (rule.after === null || -lag <= rule.after)
    && lag % rule.step === 0;
}

// Whether any key of a block may be read by any query of it; exact for plain windows, which is all that is drawn so.
function allowedSomewhere(rule, query, key, size) {
  if (size === 1) return allowed(rule, query, key);
  if (rule.causal && key > query + size - 1) return false;
  if (rule.everywhere) {
    for (let step = 0; step < size; step++) if (rule.everywhere[query + step]
      || rule.everywhere[key + step]) return true;
  }
  const most = query + size - 1 - key, least = query - (key + size - 1); // lags of the block
  if ((rule.before !== null && least > rule.before) || (rule.after !== null && -most > rule.after)) return false;
  return rule.step <= size || Math.floor(most / rule.step) * rule.step >= least;
}

async function openRule(rule) {
  if (!rule) return null;
  return { ...rule, readable: await openArray(rule.readable), everywhere: await openArray(rule.everywhere) };
}

// Computes any rectangle of a map.
class Detail {
  static async open(stored) {
    if (!stored) return null;
    const detail = new Detail();
    detail.kind = stored.kind;
    detail.scale = stored.scale;
    for (const [name, value] of Object.entries(stored)) {
      if (Array.isArray(value)) detail[name] = await openArray(value);
    }
    detail.rule = await openRule(stored.rule);
    const first = stored.weights ?? stored.q ?? stored.left;
    if (stored.kind !== "rows") detail.width = first[3][1];
    return detail;
  }

  // Weights of queries from `top` to `bottom` on keys from `left` to `right`, row by row.
  tile(top, bottom, left, right) {
    const wide = right - left;
    const out = new Float32Array((bottom - top) * wide);
    for (let query = top; query < bottom; query++) this.line(query, left, right, out, (query - top) * wide);
    return out;
  }

  line(query, left, right, out, at) {
    if (this.kind === "dense") out.set(this.weights.subarray(query * this.width + left, query * this.width + right),
      at);
    else if (this.kind === "softmax") this.softmaxLine(query, left, right, out, at);
    else if (this.kind === "product") this.productLine(query, left, right, out, at);
    else this.sparseLine(query, left, right, out, at);
  }

  softmaxLine(query, left, right, out, at) {
    const { q, k, width, scale, rule, bias } = this;
    const lse = this.lse[query];
    const middle = bias ? bias.length >> 1 : 0;
    const begin = query * width;
    const { everywhere, readable } = rule;
    const plain = !everywhere && !readable && rule.step === 1;
    if (plain) { // a run of keys
      const first = rule.before === null ? left : Math.max(left, query - rule.before);
      let last = rule.after === null ? right : Math.min(right, query + rule.after + 1);
      if (rule.causal) last = Math.min(last, query + 1);
      at += first - left; left = first; right = last;
    }
    for (let key = left; key < right; key++, at++) {
      if (!plain && !allowed(rule, query, key)) continue;
      let sum = 0;
      for (let index = 0, place = key * width; index < width; index++) sum += q[begin + index] * k[place + index];
      let score = scale * sum - lse;
      if (bias) score += bias[key - query + middle];
      out[at] = Math.exp(score);
    }
  }

  productLine(query, left, right, out, at) {
    const { width, rule, decay, added } = this;
    const rows = this.left, columns = this.right;
    const share = this.row_sum ? 1 / this.row_sum[query] : 1;
    const middle = added ? added.length >> 1 : 0;
    for (let key = left; key < right; key++, at++) {
      if (!allowed(rule, query, key)) continue;
      let sum = 0;
      for (let index = 0, a = query * width, b = key * width; index < width; index++) sum += rows[a
        + index] * columns[b + index];
      sum *= share;
      if (decay) sum *= Math.exp(decay[query] - decay[key]);
      if (added && Math.abs(key - query) <= middle) sum += added[key - query + middle];
      out[at] = sum;
    }
  }

  sparseLine(query, left, right, out, at) {
    const { keys, weights } = this;
    const end = this.starts[query + 1];
    let low = this.starts[query], high = end;
    while (low < high) { // the first key that is not before `left`
      const middle = (low + high) >> 1;
      if (keys[middle] < left) low = middle + 1; else high = middle;
    }
    for (; low < end && keys[low] < right; low++) out[at + keys[low] - left] = weights[low];
  }

  column(key, rows) {
    const out = new Float32Array(rows);
    for (let query = 0; query < rows; query++) this.line(query, key, key + 1, out, query);
    return out;
  }
}

// A map that views can show: one head, a mean or a maximum over heads, a rollout, an exact map or a difference.
class Source {
  constructor({ title, queries, keys, pyramid, detail = null, pattern = null, signed = false, largest = null,
    minus = null }) {
    Object.assign(this, { title, queries, keys, stored: { pyramid, detail, pattern }, signed, minus });
    this.rows = queries.tokens.length;
    this.columns = keys.tokens.length;
    this.scale = pyramid.scale;
    this.given = largest;
    this.sheets = new Map();
  }

  open() {
    this.opening ??= this.load();
    return this.opening;
  }

  async load() {
    const { pyramid, detail, pattern } = this.stored;
    this.levels = await Promise.all(pyramid.levels.map(async (level) => ({
      cell: level.cell, rows: level.shape[0], columns: level.shape[1],
      max: await openArray(level.max), mean: await openArray(level.mean), low: await openArray(level.low),
    })));
    this.detail = await Detail.open(detail);
    if (this.minus) { // ours minus exact: exact where both are
      const [ours, exact] = await Promise.all(this.minus.map((stored) => Detail.open(stored)));
      this.pair = ours && exact ? [ours, exact] : null;
    }
    this.pattern = pattern ? await openPattern(pattern) : null;
    const finest = this.levels[0];
    let most = 0;
    for (const codes of [finest.max, finest.low]) if (codes) for (const code of codes) if (code > most) most = code;
    this.largest = this.given ?? this.scale * DECODED[most];
    return this;
  }

  get exact() { return Boolean(this.detail || this.pair); }

  // Tokens that share one number, where exact ones are missing.
  get coarse() { return this.exact ? 1 : this.levels[0].cell; }

  // A line in which cells stand for their tokens: the sum of each at its first token.
  byCells(line) {
    const size = this.coarse;
    if (size === 1) return line;
    const sums = new Float32Array(line.length);
    line.forEach((weight, place) => { sums[place - (place % size)] += weight; });
    return sums;
  }

  tile(top, bottom, left, right) {
    if (!this.pair) return this.detail.tile(top, bottom, left, right);
    const [ours, exact] = this.pair.map((detail) => detail.tile(top, bottom, left, right));
    for (let place = 0; place < ours.length; place++) ours[place] -= exact[place];
    return ours;
  }

  // From the finest level: the mean of the cell, or the weight itself to 3 % where cells are single weights.
  rough(query, key) {
    const level = this.levels[0];
    const place = Math.floor(query / level.cell) * level.columns + Math.floor(key / level.cell);
    const up = this.scale * DECODED[(level.cell === 1 ? level.max : level.mean)[place]];
    return level.low && level.cell === 1 ? up - this.scale * DECODED[level.low[place]] : up;
  }

  weight(query, key) {
    return this.exact ? this.tile(query, query + 1, key, key + 1)[0] : this.rough(query, key);
  }

  spelledWeight(query, key) {
    if (this.exact) return spell(this.weight(query, key));
    const { cell } = this.levels[0];
    const value = spell(this.rough(query, key), 2);
    return cell === 1 ? `about ${value}` : `about ${value} on average in cells of ${cell} × ${cell}`;
  }

  // "query 3 “bank” reads key 1 “river”: 0.25"
  sentence(query, key) {
    return `query ${named(this.queries, query)} reads key ${named(this.keys, key)}: ${this.spelledWeight(query, key)}`;
  }

  row(query) {
    if (this.exact) return this.tile(query, query + 1, 0, this.columns);
    return Float32Array.from({ length: this.columns }, (_, key) => this.rough(query, key));
  }

  column(key) {
    if (this.detail) return this.detail.column(key, this.rows);
    if (this.pair) return this.tile(0, this.rows, key, key + 1);
    return Float32Array.from({ length: this.rows }, (_, query) => this.rough(query, key));
  }
}

async function openPattern(pattern) {
  const rule = await openRule(pattern.rule);
  const cells = await openArray(pattern.cells);
  const stored = pattern.key_buckets ?? pattern.buckets;
  const buckets = await openArray(stored);
  const rounds = stored ? stored[3][0] : 0;
  const wide = pattern.cells ? pattern.cells[3][1] : 0;
  const high = pattern.cells ? pattern.cells[3][0] : 0;
  return {
    sentence: pattern.sentence, buckets, rounds, known: Boolean(rule || cells),
    // Whether a block of cells may be read somewhere.
    could(query, key, size) {
      if (rule) return allowedSomewhere(rule, query, key, size);
      const last = Math.min(high - 1, Math.floor((query + size - 1) / pattern.cell));
      const end = Math.min(wide - 1, Math.floor((key + size - 1) / pattern.cell));
      for (let row = Math.floor(query / pattern.cell); row <= last; row++) {
        for (let column = Math.floor(key / pattern.cell); column <= end;
          column++) if (cells[row * wide + column]) return true;
      }
      return false;
    },
  };
}

// The largest weights of a line: indices, best first, and the share of its mass that they hold.
function strongest(line, count, skip = null) {
  const kept = [];
  let mass = 0;
  for (let place = 0; place < line.length; place++) {
    if (skip?.has(place)) continue;
    const size = Math.abs(line[place]);
    mass += size;
    if (size > 0 && (kept.length < count || size > Math.abs(line[kept.at(-1)]))) {
      let at = kept.length;
      while (at > 0 && Math.abs(line[kept[at - 1]]) < size) at--;
      kept.splice(at, 0, place);
      if (kept.length > count) kept.pop();
    }
  }
  const shown = kept.reduce((sum, place) => sum + Math.abs(line[place]), 0);
  return { places: kept, mass, share: mass ? shown / mass : 0 };
}

// A token by its position and text.
const named = (axis, place) => `${place} “${shownToken(axis.tokens[place])}”`;

// A token as text to show: what would not be seen is spelled.
function shownToken(token) {
  const visible = token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("▁", " ").replaceAll("Ġ", " ");
  return visible.trim() === "" ? visible.replaceAll(" ", "␣") || "∅" : visible;
}
