// Who looks where: every head of every layer as a thumbnail, and one of them large.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen, visible } = attnflow;
  const THUMB = 44;
  const LABEL = 84; // room for names beside and below the large one

  class HeadGrid {
    constructor(heads, names) {
      this.heads = heads;
      this.names = names.map((name) => visible(name).trim());
      this.said = make("p", { class: "af-said", "aria-live": "polite" });
      this.large = make("canvas", { class: "af-head-large", role: "img" });
      this.grid = make("div", { class: "af-heads", role: "group", "aria-label": "Heads, a row for each layer" });
      this.grid.style.setProperty("--heads", heads.heads);
      this.root = make("div", {}, make("h3", {}, "Heads: who looks where"), this.said, this.grid, this.large);
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
      this.grid.append(button);
      return { button, canvas, layer, head };
    }

    weight(layer, head, i, j) {
      const n = this.heads.length;
      return this.heads.weights[layer][(head * n + i) * n + j] / 255;
    }

    paint(canvas, layer, head, size, look, label = 0) {
      const n = this.heads.length;
      const pen = sharpen(canvas, size + label, size + label);
      if (label) this.writeNames(pen, size, look);
      pen.translate(label, 0);
      const cell = size / n;
      for (let i = 0; i < n; i++) {
        for (let j = 0; j < n; j++) {
          const share = this.weight(layer, head, i, j);
          if (share < 0.02) continue;
          pen.fillStyle = look.shade(share);
          pen.fillRect(j * cell, i * cell, Math.max(1, cell), Math.max(1, cell));
        }
      }
    }

    writeNames(pen, size, look) {
      const cell = size / this.heads.length;
      pen.fillStyle = look.ink;
      pen.font = `12px ${getComputedStyle(this.root).fontFamily}`;
      pen.textBaseline = "middle";
      this.names.forEach((name, k) => {
        const text = name.length > 12 ? `${name.slice(0, 11)}…` : name;
        pen.textAlign = "right";
        pen.fillText(text, LABEL - 6, (k + 0.5) * cell);
        pen.save();
        pen.translate(LABEL + (k + 0.5) * cell, size + 6);
        pen.rotate(-Math.PI / 3);
        pen.fillText(text, 0, 0);
        pen.restore();
      });
    }

    draw() {
      if (this.root.clientWidth === 0) return;
      const look = colours(this.root);
      const [layer, head] = this.chosen;
      for (const one of this.thumbs) {
        this.paint(one.canvas, one.layer, one.head, THUMB, look);
        one.button.setAttribute("aria-pressed", one.layer === layer && one.head === head ? "true" : "false");
      }
      this.size = Math.min(this.root.clientWidth - LABEL, 26 * this.heads.length, 420);
      this.paint(this.large, layer, head, this.size, look, LABEL);
      this.said.textContent = this.describe();
      this.large.setAttribute("aria-label", this.said.textContent);
    }

    // The strongest looks of the chosen head, in a sentence.
    describe() {
      const [layer, head] = this.chosen;
      const n = this.heads.length;
      const pairs = [];
      for (let i = 0; i < n; i++) {
        let best = 0;
        for (let j = 1; j < n; j++) if (this.weight(layer, head, i, j) > this.weight(layer, head, i, best)) best = j;
        pairs.push([this.weight(layer, head, i, best), i, best]);
      }
      pairs.sort((a, b) => b[0] - a[0]);
      const listed = pairs.slice(0, 3).map(([w, i, j]) => `“${this.names[i]}” at “${this.names[j]}” (${Math.round(100 * w)} %)`);
      return `Layer ${this.heads.layers[layer]}, head ${head + 1}: ${listed.join(", ")}. Rows look, columns are looked at; darker is more.`;
    }

    point(event) {
      const box = this.large.getBoundingClientRect();
      const n = this.heads.length;
      const [i, j] = [event.clientY - box.top, event.clientX - box.left - LABEL].map((v) => Math.max(0, Math.min(n - 1, Math.floor((v / this.size) * n))));
      const weight = this.weight(...this.chosen, i, j);
      this.said.textContent = `“${this.names[i]}” looks at “${this.names[j]}”: ${Math.round(100 * weight)} % of its attention.`;
    }
  }

  Object.assign(attnflow, { HeadGrid });
})((globalThis.attnflow ??= {}));
