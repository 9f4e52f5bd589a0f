// The right column: the text shaded by weight, the strongest tokens, and the head's numbers.

const MOST_TOKENS = 1500; // of a text that are shown at once

class Side {
  constructor(root) {
    this.root = root;
    this.title = make("h2");
    this.sentence = make("p", { class: "quiet" });
    this.mode = make("select", { "aria-label": "what the shading shows" },
      make("option", { value: "reads" }, "what the chosen token reads"),
      make("option", { value: "readers" }, "who reads the chosen token"),
      make("option", { value: "received" }, "what all tokens read, on average"));
    this.words = make("input", { type: "checkbox", id: "by-words" });
    this.plain = make("input", { type: "checkbox", id: "no-special" });
    for (const control of [this.mode, this.words, this.plain]) control.addEventListener("change",
      () => this.show(this.source));
    this.says = make("p", { class: "says", role: "status" });
    this.text = make("div", { class: "text", "aria-label": "the text" });
    this.best = make("ol", { class: "best" });
    this.numbers = make("dl", { class: "numbers" });
    this.rest = make("div", {},
      make("div", { class: "bar" }, make("label", {}, "shade ", this.mode),
        make("label", { for: "by-words" }, this.words, " whole words"), make("label", { for: "no-special" },
          this.plain, " without first and special tokens")),
      this.says, this.text, make("h3", {}, "Strongest"), this.best, make("h3", {}, "This head"), this.numbers);
    root.replaceChildren(this.title, this.sentence, this.rest);
  }

  async show(source) {
    this.source = source;
    const { module, head } = state.current();
    this.title.textContent = source ? source.title : module.title;
    this.sentence.textContent = `${module.mechanism}${module.causal ? ", causal" : ""}. ${module.sentence}`;
    this.showNumbers(module, head);
    this.rest.hidden = !source;
    if (!source) return;
    const mode = this.mode.value;
    const { query, key } = state.shared;
    const axis = mode === "readers" ? source.queries : source.keys;
    let line, what;
    if (mode === "received") {
      const stored = head?.sums.received ? await openArray(head.sums.received) : null;
      if (source !== this.source) return;
      line = stored ? stored.map((sum) => sum / source.rows) : meanRow(source);
      what = "Mean weight that a token gets from all queries";
    } else if (mode === "readers") {
      const chosen = key ?? 0;
      line = source.column(chosen);
      what = `Who reads key ${chosen} “${shownToken(source.keys.tokens[chosen])}”`;
    } else {
      const chosen = query ?? Math.min(1, source.rows - 1);
      line = await this.queryLine(source, chosen);
      if (source !== this.source) return;
      what = `What query ${chosen} “${shownToken(source.queries.tokens[chosen])}” reads`;
    }
    await this.paint(source, axis, line, what, mode);
  }

  // With whole words, the mean over the pieces of the chosen word.
  async queryLine(source, query) {
    if (!this.words.checked) return source.row(query);
    const words = await openArray(source.queries.words);
    const pieces = words[query] < 0 ? [query]
      : range(Math.max(0, query - 24), Math.min(source.rows, query + 25)).filter((place) =>
      words[place] === words[query]);
    const sum = new Float32Array(source.columns);
    for (const piece of pieces) source.row(piece).forEach((weight, key) => { sum[key] += weight / pieces.length; });
    return sum;
  }

  async paint(source, axis, line, what, mode) {
    const special = this.plain.checked ? new Set([0, ...axis.special]) : null;
    const words = this.words.checked && mode !== "readers" ? await openArray(axis.words) : null;
    const values = Float32Array.from(line);
    if (special?.size) {
      let left = 0;
      values.forEach((weight, place) => { if (special.has(place)) values[place] = 0; else left += Math.abs(weight); });
      if (left > 0) values.forEach((weight, place) => { values[place] = weight / left; });
    }
    const groups = this.groupsOf(axis, words);
    for (const group of groups) group.weight = group.places.reduce((sum, place) => sum + values[place], 0);
    const most = groups.reduce((best, group) => Math.max(best, Math.abs(group.weight)), 1e-9);
    const chosen = mode === "readers" ? state.shared.key : state.shared.query;
    let begin = 0, end = groups.length;
    if (groups.length > MOST_TOKENS) {
      const middle = groups.findIndex((group) => group.places.includes(mode === "readers" ? state.shared.query ?? 0
        : state.shared.key ?? chosen ?? 0));
      begin = Math.max(0, Math.min(groups.length - MOST_TOKENS, 500 * Math.round((middle - MOST_TOKENS / 2) / 500)));
      end = begin + MOST_TOKENS;
    }
    this.write(groups, begin, end);
    const [up, down] = [colourOf("--up").join(" "), colourOf("--bad").join(" ")];
    const own = axis === (mode === "readers" ? source.keys : source.queries);
    this.spans.forEach((span, index) => { // only what changes is touched: a hover must not cost a frame
      const group = groups[begin + index];
      const share = Math.round(68 * Math.sqrt(Math.abs(group.weight) / most));
      const colour = share > 1 ? `rgb(${group.weight < 0 ? down : up} / ${share}%)` : "";
      if (span.colour !== colour) { span.colour = colour; span.style.backgroundColor = colour; }
      const marked = own && group.places.includes(chosen);
      if (span.marked !== marked) { span.marked = marked; span.className = marked ? "chosen" : ""; }
    });
    this.text.onpointermove = (event) => {
      const group = groups[begin + this.spans.indexOf(event.target)];
      if (group) event.target.title = `${group.places[0]}: ${spell(group.weight)}`;
    };
    this.text.onclick = (event) => this.choose(event, source, mode);
    const marks = [special?.size ? "first and special tokens left out, the rest sums to 1" : "", source.exact ? ""
      : "approximate", words ? "pieces of words added up" : ""].filter(Boolean);
    this.says.textContent = what + (marks.length ? ` (${marks.join("; ")})` : "") + ".";
    const weights = words ? groups.map((group) => group.weight) : source.byCells(groups.map((group) => group.weight));
    const { places } = strongest(weights, 8);
    const largest = Math.abs(weights[places[0]] ?? 0);
    const ranked = places.filter((place) => Math.abs(weights[place]) > 1e-3 * largest);
    this.best.replaceChildren(...ranked.map((place) => {
      const group = groups[place];
      const bar = make("i");
      bar.style.width = `${(100 * Math.abs(weights[place])) / largest}%`;
      const rest = !words && source.coarse > 1 ? ` and ${source.coarse - 1} more` : "";
      return make("li", {}, make("b", {}, spell(weights[place])), make("span", {}, (group.text.trim() || group.text)
        + rest), make("small", {}, String(group.places[0])), bar);
    }));
  }

  groupsOf(axis, words) {
    if (this.grouping?.axis !== axis || this.grouping.words !== words) this.grouping =
      { axis, words, groups: grouped(axis.tokens, words) };
    return this.grouping.groups;
  }

  // The words of the text; they stay while only weights change.
  write(groups, begin, end) {
    if (this.written === groups && this.begin === begin) return;
    Object.assign(this, { written: groups, begin });
    this.spans = groups.slice(begin, end).map((group) => make("span", { "data-place": group.places[0] }, group.text));
    this.text.replaceChildren(...(begin ? [make("i", {}, `… from token ${groups[begin].places[0]} on: `)] : []),
      ...this.spans, ...(end < groups.length ? [make("i", {}, " …")] : []));
  }

  choose(event, source, mode) {
    const place = Number(event.target.dataset?.place ?? NaN);
    if (!Number.isInteger(place)) return;
    const { shared } = state;
    if (mode === "readers") shared.key = Math.min(place, source.columns - 1);
    else shared.query = Math.min(place, source.rows - 1);
    if (mode === "readers" && source.queries !== source.keys) shared.query = place;
    shared.query ??= 0;
    shared.key ??= Math.min(shared.query, source.columns - 1);
    shared.locked = true;
    state.changed("cell");
  }

  showNumbers(module, head) {
    const rows = [];
    if (head) {
      const { sums } = head;
      const self = module.kind === "self";
      if (self) rows.push(["on the previous token", spell(sums.previous)], ["on the token itself", spell(sums.self)],
        ["on the next token", spell(sums.next)]);
      rows.push(["on the first token", spell(sums.first)]);
      const axis = state.record.axes[module.keys];
      sums.special.slice(0, 6).forEach((share, index) =>
        rows.push([`on ${shownToken(axis.tokens[axis.special[index]])} (${axis.special[index]})`, spell(share)]));
      const count = axis.tokens.length;
      const even = module.causal ? range(1, count + 1).reduce((sum, keys) => sum + Math.log(keys), 0) / count
        : Math.log(count);
      rows.push(["entropy, mean of rows", `${spell(sums.mean_entropy)} of ${spell(even)} if even`],
        ["largest weight", spell(sums.largest)]);
      rows.push(["exact weights in the page", head.detail ? "yes" : "no, they did not fit"]);
    }
    this.numbers.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  }
}

function meanRow(source) {
  const level = source.levels.at(-1);
  const sums = new Float32Array(level.columns);
  for (let place = 0; place < level.mean.length;
    place++) sums[place % level.columns] += (source.scale * DECODED[level.mean[place]]) / level.rows;
  return Float32Array.from({ length: source.columns }, (_, key) => sums[Math.floor(key / level.cell)]);
}

// Tokens, or words of several tokens.
function grouped(tokens, words) {
  const groups = [];
  tokens.forEach((token, place) => {
    const last = groups.at(-1);
    const text = spaced(token);
    if (words && last && words[place] >= 0 && words[place] === last.word) {
      last.places.push(place);
      last.text += text.replace(/^ ?##/, "").replace(/^ /, "");
    } else groups.push({ places: [place], text, word: words ? words[place] : -1 });
  });
  return groups;
}

// A token with the space before it that its tokenizer means.
function spaced(token) {
  if (token.startsWith("##")) return token;
  const text = token.replaceAll("▁", " ").replaceAll("Ġ", " ").replaceAll("Ċ", "\n");
  return text === "" ? " ∅" : /^[\s]/.test(text) ? text : ` ${text}`;
}
