// Who looks where: every head of every layer as a thumbnail, and one of them large.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen, visible, ColourScale } = attnflow;
  const THUMB = 44;
  const LEAST = 14; // pixels that a name needs
  const LABEL = 84; // room for names beside and below the large one

  class HeadGrid {
    constructor(heads) {
      this.heads = heads;
      this.rows = heads.rows.map((name) => visible(name).trim());
      this.columns = heads.columns.map((name) => visible(name).trim());
      this.said = make("p", { class: "af-said", "aria-live": "polite" });
      this.large = make("canvas", { class: "af-head-large", role: "img" });
      this.grid = make("div", { class: "af-heads", role: "group", "aria-label": "Heads, a row for each layer" });
      this.grid.style.setProperty("--heads", heads.heads);
      const scale = new ColourScale();
      scale.update("0 %", "100 % of its attention");
      this.root = make("div", {}, make("h3", {}, "Heads: who looks where"), this.said, this.grid, this.large, scale.root);
      const number = (text) => make("span", { class: "af-head-number", "aria-hidden": "true" }, text);
      this.grid.append(number("layer"), ...Array.from({ length: heads.heads }, (_, head) => number(`head ${head + 1}`)));
      this.chosen = [heads.layers.length - 1, 0];
      this.thumbs = heads.layers.flatMap((_, layer) => Array.from({ length: heads.heads }, (_, head) => this.thumb(layer, head)));
      this.large.addEventListener("pointermove", (event) => this.point(event));
      new ResizeObserver(() => this.draw()).observe(this.root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    thumb(layer, head) {
      const canvas = make("canvas", { "aria-hidden": "true" });
      const name = `layer ${this.heads.layers[layer]}, head ${head + 1}`;
      const button = make("button", { type: "button", class: "af-thumb", "aria-label": name, title: name }, canvas);
      button.addEventListener("click", () => {
        this.chosen = [layer, head];
        this.draw();
      });
      if (head === 0) this.grid.append(make("span", { class: "af-head-number", "aria-hidden": "true" }, this.heads.layers[layer]));
      this.grid.append(button);
      return { button, canvas, layer, head };
    }

    weight(layer, head, i, j) {
      const [rows, columns] = [this.rows.length, this.columns.length];
      return this.heads.weights[layer][(head * rows + i) * columns + j] / 255;
    }

    paint(canvas, layer, head, [width, height], look, label = 0) {
      const pen = sharpen(canvas, width + label, height + label);
      if (label) this.writeNames(pen, [width, height], look);
      pen.translate(label, 0);
      const [wide, high] = [width / this.columns.length, height / this.rows.length];
      for (let i = 0; i < this.rows.length; i++) {
        for (let j = 0; j < this.columns.length; j++) {
          const share = this.weight(layer, head, i, j);
          if (share < 0.02) continue;
          pen.fillStyle = look.shade(share);
          pen.fillRect(j * wide, i * high, Math.max(1, wide), Math.max(1, high));
        }
      }
    }

    // Beside the rows and below the columns; where columns are narrow, every few of them.
    writeNames(pen, [width, height], look) {
      const [wide, high] = [width / this.columns.length, height / this.rows.length];
      const short = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);
      pen.fillStyle = look.ink;
      pen.font = `12px ${getComputedStyle(this.root).fontFamily}`;
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      const every = (size) => Math.max(1, Math.ceil(LEAST / size));
      this.rows.forEach((name, k) => {
        if (k % every(high) === 0) pen.fillText(short(name), LABEL - 6, (k + 0.5) * high);
      });
      this.columns.forEach((name, k) => {
        if (k % every(wide)) return;
        pen.save();
        pen.translate(LABEL + (k + 0.5) * wide, height + 6);
        pen.rotate(-Math.PI / 3);
        pen.fillText(short(name), 0, 0);
        pen.restore();
      });
    }

    // Squares while they fit; a long prompt is squeezed to the room there is.
    largeSize() {
      const room = Math.min(this.root.clientWidth - LABEL, 760);
      const square = Math.min(26, Math.max(LEAST, room / this.columns.length));
      return [Math.min(room, square * this.columns.length), Math.min(420, Math.max(18, square) * this.rows.length)];
    }

    draw() {
      if (this.root.clientWidth === 0) return;
      const look = colours(this.root);
      const [layer, head] = this.chosen;
      for (const one of this.thumbs) {
        this.paint(one.canvas, one.layer, one.head, [THUMB, THUMB], look);
        one.button.setAttribute("aria-pressed", one.layer === layer && one.head === head ? "true" : "false");
      }
      this.size = this.largeSize();
      this.paint(this.large, layer, head, this.size, look, LABEL);
      this.said.textContent = this.describe();
      this.large.setAttribute("aria-label", this.said.textContent);
    }

    // The strongest looks of the chosen head, in a sentence.
    describe() {
      const [layer, head] = this.chosen;
      const pairs = [];
      for (let i = 0; i < this.rows.length; i++) {
        let best = 0;
        for (let j = 1; j < this.columns.length; j++) if (this.weight(layer, head, i, j) > this.weight(layer, head, i, best)) best = j;
        pairs.push([this.weight(layer, head, i, best), i, best]);
      }
      pairs.sort((a, b) => b[0] - a[0]);
      const listed = pairs.slice(0, 3).map(([w, i, j]) => `“${this.rows[i]}” at “${this.columns[j]}” (${Math.round(100 * w)} %)`);
      return `Layer ${this.heads.layers[layer]}, head ${head + 1}: ${listed.join(", ")}. Rows look, columns are looked at; stronger is more attention.`;
    }

    point(event) {
      const box = this.large.getBoundingClientRect();
      const place = (offset, size, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / size) * count)));
      const i = place(event.clientY - box.top, this.size[1], this.rows.length);
      const j = place(event.clientX - box.left - LABEL, this.size[0], this.columns.length);
      const weight = this.weight(...this.chosen, i, j);
      this.said.textContent = `“${this.rows[i]}” looks at “${this.columns[j]}”: ${Math.round(100 * weight)} % of its attention.`;
    }
  }

  Object.assign(attnflow, { HeadGrid });
})((globalThis.attnflow ??= {}));
