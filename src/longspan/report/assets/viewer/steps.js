// A generated text, token by token: what each new token read, the alternatives it had, and the logit lens.

class Steps {
  constructor(root) {
    const { generated } = state.record;
    this.slider = make("input", { type: "range", min: 0, max: Math.max(0, generated.steps.length - 1), step: 1,
      value: 0, id: "step" });
    this.label = make("output");
    this.who = make("select", { "aria-label": "which heads" }, make("option", { value: "head" }, "the chosen head"),
      make("option", { value: "mean" }, "mean over the heads of its layer"));
    this.text = make("div", { class: "text" });
    this.says = make("p", { class: "readout", role: "status" });
    this.choices = make("div", { class: "scroll" });
    this.lens = make("div", { class: "scroll" });
    this.cache = make("p", { class: "quiet" });
    const settings = Object.entries(generated.settings).filter(([, value]) => value !== null).map(([name, value]) =>
      `${name} ${value}`).join(", ");
    root.append(
      make("p", { class: "quiet" },
        `${generated.prompt} tokens were given, ${generated.steps.length} written${settings ? ` (${settings})` : ""}. ` +
          `Ended by: ${generated.stopped}.`),
      make("div", { class: "bar" }, make("label", { for: "step" }, "step "), this.slider, this.label,
        make("label", {}, "read by ", this.who)),
      this.says, this.text, make("div", { class: "halves" },
        make("section", {}, make("h3", {}, "What could have come"), this.choices),
          make("section", {}, make("h3", {}, "Logit lens: what each layer would say"), this.lens)), this.cache);
    this.slider.addEventListener("input", () => { state.step = Number(this.slider.value); this.show(); state.save(); });
    this.who.addEventListener("change", () => this.show());
  }

  async show() {
    const { generated } = state.record;
    if (!generated.steps.length) { this.says.textContent = "Nothing was written."; return; }
    state.step = Math.max(0, Math.min(generated.steps.length - 1, state.step));
    this.slider.value = state.step;
    const step = generated.steps[state.step];
    this.label.textContent = `${state.step + 1} of ${generated.steps.length}`;
    const { module, number, head } = state.current();
    const axis = state.record.axes[module.queries];
    const keys = state.record.axes[module.keys];
    const reading = step.readings.find((found) => found.module === number);
    const line = reading ? await this.weights(reading, head, module) : null;
    const shown = line ? line.length : step.position;
    const alone = reading && this.who.value === "head" && head && reading.weights[3][0] === module.heads.length;
    const readers = alone ? `head ${head.index} of` : "the heads of";
    const read = reading ? `Shaded: what ${readers} ${module.title} read to write it.`
      : `${module.title} kept no reading of it.`;
    this.says.textContent = `“${shownToken(step.token)}” was written at position ${step.position}. ${read}`;
    this.paint(module.kind === "cross" ? keys : axis, line, step, shown, module.kind === "cross");
    this.showChoices(step);
    this.showLens(step);
    const cached = step.cached ? await openArray(step.cached) : null;
    const left = cached?.length && cached[0] > 0 ? ` from ${cached[0]} on: earlier ones have left it` : "";
    const held = cached ? `keys of ${cached.length} positions${left}` : "of fixed size";
    this.cache.textContent = step.cache_bytes === null ? ""
      : `State after this step: ${spellBytes(step.cache_bytes)}, ${held}.`;
  }

  async weights(reading, head, module) {
    const all = await openArray(reading.weights);
    const [heads, keys] = reading.weights[3];
    if (this.who.value === "head" && head && heads === module.heads.length) {
      const place = module.heads.indexOf(head);
      return all.subarray(place * keys, (place + 1) * keys);
    }
    const mean = new Float32Array(keys);
    for (let place = 0; place < all.length; place++) mean[place % keys] += all[place] / heads;
    return mean;
  }

  paint(axis, line, step, shown, cross) {
    const most = line ? line.reduce((best, weight) => Math.max(best, Math.abs(weight)), 1e-9) : 1;
    const up = colourOf("--up").join(" ");
    const begin = Math.max(0, shown - MOST_TOKENS);
    const spans = axis.tokens.slice(begin, shown).map((token, index) => {
      const place = begin + index;
      const span = make("span", {}, spaced(token));
      const weight = line ? Math.abs(line[place]) : 0;
      const share = Math.sqrt(weight / most);
      if (share > 0.02) span.style.backgroundColor = `rgb(${up} / ${Math.round(68 * share)}%)`;
      span.title = `${place}: ${spell(weight)}`;
      if (!cross && place >= state.record.generated.prompt) span.className = "written";
      return span;
    });
    const next = make("span", { class: "chosen" }, cross ? ` → ${shownToken(step.token)}` : spaced(step.token));
    this.text.replaceChildren(...spans, next);
  }

  showChoices(step) {
    const rows = step.choices.map((choice) => {
      const bar = make("i");
      bar.style.width = `${100 * choice.probability}%`;
      return make("tr", { class: choice.id === step.id ? "chosen" : "" }, make("td", {}, shownToken(choice.token)),
        make("td", { class: "barred" }, bar, spell(choice.probability)), make("td", { class: "number" }, choice.cut
          ? `cut by ${choice.cut}` : spell(choice.chance)));
    });
    const how = step.draw === null ? "The most probable token was taken."
      : `The draw was ${spell(step.draw, 4)}, among ${step.kept} tokens.`;
    this.choices.replaceChildren(make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "token"), make("th", {}, "probability"),
      make("th", { class: "number" }, "chance after filters"))),
      make("tbody", {}, ...rows)), make("p", { class: "quiet" }, how));
  }

  showLens(step) {
    if (!step.lens.length) { this.lens.replaceChildren(make("p", { class: "quiet" },
      "There is no logit lens for this model.")); return; }
    const rows = step.lens.map((line) => {
      const [first] = line.top;
      const bar = make("i");
      bar.style.width = `${100 * (first?.probability ?? 0)}%`;
      return make("tr", { class: line.rank === 0 ? "chosen" : "" },
        make("td", {}, line.state ? `after layer ${line.state - 1}` : "embeddings"),
        make("td", {}, first ? shownToken(first.token) : "–"), make("td", { class: "barred" }, bar,
          spell(first?.probability)), make("td", { class: "number" }, String(line.rank + 1)));
    });
    const led = step.first_led === null ? "The written token never led." : step.first_led === 0
      ? "The written token led from the embeddings on." : `The written token led from layer ${step.first_led - 1} on.`;
    this.lens.replaceChildren(make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "state"), make("th", {}, "would say"),
      make("th", {}, "probability"), make("th", { class: "number" }, "rank of the written one"))),
      make("tbody", {}, ...rows)), make("p", { class: "quiet" }, led));
  }
}
