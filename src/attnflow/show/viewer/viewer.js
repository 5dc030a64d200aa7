// The viewer: what is chosen, and what every panel shows of it. `attnflow.show(element, record)`
// draws a view document; the same record always gives the same page.
(function (attnflow) {
  "use strict";

  const { make, open, visible, format, TextPanel, LayerMap, Strongest, FlowGraph, Picture, Controls } = attnflow;
  const LEAST = -0.6; // what is less than the baseline is shown, but does not outshine what is more
  const SPOKEN_AFTER = 350; // ms: a screen reader hears where one stops, not every step on the way

  class Viewer {
    constructor(root, record) {
      this.view = open(record);
      const last = this.view.results[0].layers.length - 1;
      this.state = {
        result: 0,
        layer: last,
        mean: false,
        scale: "none",
        top: null,
        least: 0,
        hideCommon: false,
        target: this.view.start,
        hovered: null,
        source: null,
      };
      this.names = this.view.sources.texts.map((text) => text);
      this.common = new Array(this.names.length).fill(false);
      for (const item of this.view.items) {
        if (item.source === null) continue;
        this.names[item.source] = item.text;
        this.common[item.source] = item.common;
      }
      this.build(root);
      this.renderSoon();
    }

    // -- building -------------------------------------------------------------------------------

    build(root) {
      const { view } = this;
      this.controls = new Controls(view.results, this.state, (change) => this.change(change));
      this.text = new TextPanel(view.items, {
        label: "Tokens. Arrow keys choose the target, plus and minus the layer.",
        onHover: (item) => this.hover(item),
        onPick: (item) => this.pick(item),
        onMove: (event) => this.key(event),
      });
      this.map = new LayerMap({ onPick: (layer) => this.change({ layer, mean: false }) });
      this.strongest = new Strongest({ onSource: (source) => this.chooseSource(source) });
      this.spoken = make("p", { class: "af-spoken", "aria-live": "polite" });
      this.notes = make("ul", { class: "af-notes" });
      this.heading = make("h3", {}, "Sources");
      const panels = [this.textPanel(), this.sidePanel()];
      if (view.graph) panels.push(this.graphPanel());
      root.replaceChildren(
        make("div", { class: "af-viewer" }, this.head(), this.controls.root, make("div", { class: "af-panels" }, ...panels)),
      );
      root.firstChild.addEventListener("keydown", (event) => this.layerKey(event));
    }

    head() {
      const { prediction, model } = this.view;
      const said = prediction && `The model says ${prediction.label} (${(100 * prediction.probability).toFixed(1)} %).`;
      return make(
        "header",
        { class: "af-head" },
        make("h2", {}, this.view.title),
        make("p", { class: "af-quiet" }, [said, model && `Model: ${model}.`].filter(Boolean).join(" ")),
      );
    }

    textPanel() {
      const panel = make("section", { class: "af-panel af-reading", "aria-label": "Text" });
      if (this.view.image) {
        this.picture = new Picture(this.view.image, {
          onPatch: (source) => this.pick({ target: this.targetOf(source) }),
          targetOf: (source) => this.targetOf(source),
        });
        panel.append(this.picture.root);
      }
      panel.append(this.text.root, this.spoken, this.notes);
      return panel;
    }

    sidePanel() {
      return make(
        "section",
        { class: "af-panel af-side", "aria-label": "Sources" },
        this.heading,
        this.strongest.root,
        make("h3", {}, "Sources × layers"),
        this.map.root,
        this.map.said,
      );
    }

    graphPanel() {
      this.graph = new FlowGraph(this.view.graph, this.names, { onSource: (source) => this.chooseSource(source) });
      return make("section", { class: "af-panel af-below", "aria-label": "Flow graph" }, make("h3", {}, "Flow graph"), this.graph.root);
    }

    // -- choosing -------------------------------------------------------------------------------

    change(change) {
      const before = this.result.layers[this.state.layer];
      Object.assign(this.state, change);
      if ("result" in change) {
        const same = this.result.layers.indexOf(before);
        this.state.layer = same < 0 ? this.result.layers.length - 1 : same;
        if (this.result.signed && this.state.scale === "sum") this.state.scale = "none";
      }
      this.renderSoon();
    }

    hover(item) {
      const hovered = item?.target ?? null;
      if (hovered === this.state.hovered) return;
      this.state.hovered = hovered;
      this.renderSoon();
    }

    pick(item) {
      if (item?.target === null || item?.target === undefined) return;
      this.change({ target: item.target, hovered: null });
    }

    chooseSource(source) {
      this.change({ source: this.state.source === source ? null : source, hovered: null });
      this.graph?.root.scrollIntoView({ block: "nearest", behavior: "smooth" });
    }

    key(event) {
      const count = this.view.targets.texts.length;
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -count, End: count, PageDown: 20, PageUp: -20 };
      if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const target = Math.max(0, Math.min(count - 1, this.state.target + steps[event.key]));
      this.change({ target, hovered: null });
      this.text.reveal(target);
    }

    layerKey(event) {
      const step = { "+": 1, "=": 1, "-": -1 }[event.key];
      if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const layer = Math.max(0, Math.min(this.result.layers.length - 1, this.state.layer + step));
      this.change({ layer, mean: false });
    }

    targetOf(source) {
      const position = this.view.sources.positions[source];
      const at = this.view.targets.positions.indexOf(position);
      return at < 0 ? null : at;
    }

    get result() {
      return this.view.results[this.state.result];
    }

    get target() {
      return this.state.hovered ?? this.state.target;
    }

    // -- reckoning ------------------------------------------------------------------------------

    scaled(layer, row) {
      const { scale, hideCommon } = this.state;
      if (scale === "none") return row;
      let whole = scale === "sum" ? this.result.total(layer, this.target, row) : 0;
      if (scale === "max") for (let j = 0; j < row.length; j++) if (!(hideCommon && this.common[j])) whole = Math.max(whole, Math.abs(row[j]));
      return whole > 0 ? row.map((value) => value / whole) : row.fill(0);
    }

    // The row in question, the sources shown (strongest first), and the strongest value.
    reckon() {
      const { layer, mean, top, least, hideCommon } = this.state;
      const raw = mean ? this.result.meanRow(this.target) : this.result.row(layer, this.target);
      const row = this.scaled(mean ? null : layer, raw);
      let order = Array.from(row.keys()).filter((j) => row[j] !== 0 && !(hideCommon && this.common[j]));
      order.sort((a, b) => Math.abs(row[b]) - Math.abs(row[a]) || a - b);
      let strongest = order.length ? Math.abs(row[order[0]]) : 0;
      if (this.result.signed) {
        order = order.filter((j) => row[j] > 0).concat(order.filter((j) => row[j] < 0));
        if (row[order[0]] > 0) strongest = row[order[0]]; // what is more than the baseline sets the scale
      }
      order = order.filter((j) => Math.abs(row[j]) >= least * strongest);
      if (top !== null) order = order.slice(0, top);
      return { row, order, strongest };
    }

    // -- showing --------------------------------------------------------------------------------

    renderSoon() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = null;
        this.render();
      });
    }

    // Layers are unpacked one at a time, each in a moment of its own.
    unpackSoon() {
      if (this.result.ready || this.unpacking) return;
      this.unpacking = setTimeout(() => {
        this.unpacking = null;
        this.result.unpackNext();
        if (this.result.ready) this.renderSoon();
        else this.unpackSoon();
      }, 0);
    }

    render() {
      this.unpackSoon();
      if (this.state.mean && !this.result.ready) return; // it comes when all layers are there
      const { row, order, strongest } = this.reckon();
      const { layer, mean, source } = this.state;
      const shown = new Set(order);
      const saturated = (j) => !mean && this.result.isSaturated(layer, this.target, j);
      const share = (j) => (strongest > 0 ? Math.max(LEAST, row[j] / strongest) : 0);
      const paint = { share, value: (j) => row[j], hidden: (j) => !shown.has(j), saturated, target: this.target };
      this.controls.update();
      this.text.update(paint);
      this.picture?.update(paint);
      this.strongest.update({ ...paint, order, names: this.names, positions: this.view.sources.positions, cuttable: Boolean(this.graph), source });
      this.heading.textContent = `What “${this.targetName()}” draws on`;
      this.updateMap(order);
      if (this.state.hovered === null) this.updateGraph();
      this.note(order, saturated);
      this.say(row, order);
    }

    updateMap(order) {
      const all = this.state.top === null && this.state.least === 0;
      const rows = all && !this.state.hideCommon ? Array.from(this.names.keys()) : order.slice().sort((a, b) => a - b);
      const grid = this.result.rows(this.target).map((row, k) => row && this.scaled(k, row));
      let strongest = 0;
      for (const row of grid) if (row) for (const j of rows) strongest = Math.max(strongest, row[j]);
      const at = this.state.mean ? null : this.state.layer;
      this.map.update({ rows, grid, least: LEAST, layers: this.result.layers, at, names: this.names, strongest });
    }

    updateGraph() {
      if (!this.graph) return;
      const at = this.view.sources.positions.indexOf(this.view.targets.positions[this.state.target]);
      const number = this.result.layers[this.state.mean ? this.result.layers.length - 1 : this.state.layer];
      const height = this.view.graph.layers.indexOf(number) + 1;
      if (at >= 0 && height > 0) this.graph.update(height, at, this.state.source);
    }

    targetName() {
      const item = this.view.items.find((one) => one.target === this.target);
      return visible(item ? item.text : this.view.targets.texts[this.target]).trim();
    }

    note(order, saturated) {
      const { layer, mean } = this.state;
      const count = order.filter(saturated).length;
      // Saturation is counted below for what is shown; a remark speaks of the highest layer only.
      const remarks = this.result.remarks.filter((text) => !count || !text.includes("saturated"));
      const notes = [this.result.title, ...remarks.map(sentence)];
      if (count) notes.push(`${count} of ${order.length} values (dotted) are saturated: they are the same for any target.`);
      const elsewhere = mean ? null : this.result.elsewhere(layer, this.target);
      if (elsewhere !== null && Math.abs(elsewhere) >= 0.0005) notes.push(`${format(elsewhere)} falls on tokens that are not among the sources.`);
      if (this.result.gap !== null) notes.push(certificate(this.result.gap));
      if (this.result.signed) notes.push("Blue: more than the baseline; orange: less.");
      if (this.result.thinned) notes.push(`The ${this.result.thinned} strongest sources of each target are kept here.`);
      if (notes.join() === this.noted) return;
      this.noted = notes.join();
      this.notes.replaceChildren(...notes.map((text) => make("li", {}, text)));
    }

    say(row, order) {
      const { mean, layer } = this.state;
      const where = mean ? "the mean of layers" : `layer ${this.result.layers[layer]}`;
      const listed = order.filter((j) => row[j] > 0).slice(0, 3).map((j) => `${visible(this.names[j]).trim()} ${format(row[j])}`);
      const text = `“${this.targetName()}” at ${where} draws most on ${listed.join(", ") || "nothing shown"}.`;
      clearTimeout(this.speaking);
      this.speaking = setTimeout(() => (this.spoken.textContent = text), SPOKEN_AFTER);
    }
  }

  function sentence(remark) {
    const text = remark.charAt(0).toUpperCase() + remark.slice(1);
    return /[.!?]$/.test(text) ? text : `${text}.`;
  }

  function certificate(gap) {
    if (gap === 0) return "Certified: the lower and upper bounds of every value are equal.";
    return `Certified: every value is within ${gap.toExponential(0)} of the true one.`;
  }

  function show(root, record) {
    return new Viewer(root, record);
  }

  Object.assign(attnflow, { show });
})((globalThis.attnflow ??= {}));
