// Tokens × layers of one target, on a canvas that draws the rows in sight.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen, visible, format, ColourScale } = attnflow;
  const ROW = 20;
  const HEAD = 24;
  const LABEL = 108;

  class LayerMap {
    constructor({ onPick }) {
      this.canvas = make("canvas", { class: "af-map-canvas", "aria-hidden": "true" });
      this.space = make("div", { class: "af-map-space" }, this.canvas);
      this.root = make("div", { class: "af-map", tabindex: "-1" }, this.space);
      this.said = make("p", { class: "af-said" });
      this.scale = new ColourScale();
      this.root.addEventListener("scroll", () => this.drawSoon(), { passive: true });
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => (this.said.textContent = this.hint));
      this.canvas.addEventListener("click", (event) => {
        const cell = this.cellAt(event);
        if (cell) onPick(cell.layer, cell.source);
      });
      new ResizeObserver(() => this.drawSoon()).observe(this.root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawSoon());
      this.hint = "Each row is a source, each column a layer; click one to go there.";
      this.said.textContent = this.hint;
    }

    // rows: sources to show; grid[layer]: values by source; layers: their numbers; at: the current
    // one; least: the share at which negative values stop growing darker
    update(data) {
      this.data = data;
      const signed = data.grid.some((row) => row?.some((value) => value < 0));
      this.scale.update(signed ? `${format(data.least * data.strongest)} or less` : "0", format(data.strongest), signed);
      this.space.style.height = `${HEAD + data.rows.length * ROW}px`;
      this.drawSoon();
    }

    drawSoon() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = null;
        this.draw();
      });
    }

    get cell() {
      return Math.max(5, (this.root.clientWidth - LABEL - 6) / this.data.layers.length);
    }

    draw() {
      const width = this.root.clientWidth;
      if (!this.data || width === 0) return;
      const { rows, grid, layers, at, names, least } = this.data;
      const height = Math.min(this.root.clientHeight, HEAD + rows.length * ROW);
      const pen = sharpen(this.canvas, width, height);
      const look = colours(this.root);
      const first = Math.floor(this.root.scrollTop / ROW);
      const last = Math.min(rows.length, first + Math.ceil(height / ROW) + 1);
      const strongest = this.data.strongest || 1;
      pen.font = `12px ${getComputedStyle(this.root).fontFamily}`;
      pen.textBaseline = "middle";
      for (let r = first; r < last; r++) {
        const y = HEAD + r * ROW - this.root.scrollTop;
        pen.fillStyle = look.ink;
        pen.fillText(cropped(pen, visible(names[rows[r]]).trim(), LABEL - 8), 2, y + ROW / 2);
        for (let k = 0; k < layers.length; k++) {
          if (grid[k] === null) continue; // not unpacked yet
          pen.fillStyle = look.shade(Math.max(least, grid[k][rows[r]] / strongest));
          pen.fillRect(LABEL + k * this.cell, y, this.cell - 1, ROW - 1);
        }
      }
      this.drawHead(pen, look, width, layers, at);
      if (at !== null) {
        pen.strokeStyle = look.mark;
        pen.lineWidth = 2;
        pen.strokeRect(LABEL + at * this.cell - 1, HEAD - 1, this.cell + 1, height - HEAD);
      }
    }

    drawHead(pen, look, width, layers, at) {
      pen.clearRect(0, 0, width, HEAD);
      const every = Math.ceil(16 / this.cell);
      pen.textAlign = "center";
      layers.forEach((number, k) => {
        const crowded = at !== null && k !== at && Math.abs(k - at) < every;
        if ((k % every && k !== at) || crowded) return;
        pen.fillStyle = k === at ? look.mark : look.quiet;
        pen.fillText(String(number), LABEL + (k + 0.5) * this.cell - 0.5, HEAD / 2);
      });
      pen.textAlign = "left";
      pen.fillStyle = look.quiet;
      pen.fillText("layer", 2, HEAD / 2);
    }

    cellAt(event) {
      if (!this.data) return null;
      const box = this.canvas.getBoundingClientRect();
      const layer = Math.floor((event.clientX - box.left - LABEL) / this.cell);
      const row = Math.floor((event.clientY - box.top - HEAD + this.root.scrollTop) / ROW);
      if (layer < 0 || layer >= this.data.layers.length || !(row in this.data.rows)) return null;
      return { layer, source: this.data.rows[row] };
    }

    point(event) {
      const cell = this.cellAt(event);
      if (!cell) return;
      const value = this.data.grid[cell.layer]?.[cell.source] ?? 0;
      const name = visible(this.data.names[cell.source]).trim();
      this.said.textContent = `${name} at layer ${this.data.layers[cell.layer]}: ${format(value)}`;
    }
  }

  function cropped(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let kept = text;
    while (kept && pen.measureText(kept + "…").width > width) kept = kept.slice(0, -1);
    return kept + "…";
  }

  Object.assign(attnflow, { LayerMap });
})((globalThis.attnflow ??= {}));
