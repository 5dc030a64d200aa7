// An image with what the target draws on laid over it; a click on a patch makes it the target.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen } = attnflow;

  function percentile(sorted, percent) {
    const place = ((sorted.length - 1) * percent) / 100;
    const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
    return below + (above - below) * (place % 1);
  }

  class Picture {
    constructor(image, { onPatch, targetOf }) {
      this.image = image;
      this.targetOf = targetOf;
      this.canvas = make("canvas", { role: "img", "aria-label": "The image and its sources", tabindex: "0" });
      this.root = make("div", { class: "af-picture" }, this.canvas);
      if (image.picture) {
        this.photo = new Image();
        this.photo.addEventListener("load", () => this.draw());
        this.photo.src = image.picture;
      }
      this.canvas.addEventListener("click", (event) => {
        const patch = this.patchAt(event);
        if (patch !== null) onPatch(patch);
      });
      this.canvas.addEventListener("keydown", (event) => this.walk(event, onPatch));
      new ResizeObserver(() => this.draw()).observe(this.root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    walk(event, onPatch) {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.image.columns, ArrowDown: this.image.columns };
      if (!(event.key in by)) return;
      event.preventDefault();
      const at = (this.patch ?? -by[event.key]) + by[event.key];
      if (at >= 0 && at < this.image.rows * this.image.columns) onPatch(this.image.prefix + at);
    }

    patchAt(event) {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.image.rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.image.columns);
      const inside = row >= 0 && row < this.image.rows && column >= 0 && column < this.image.columns;
      return inside ? this.image.prefix + row * this.image.columns + column : null;
    }

    update(paint) {
      this.paint = paint;
      this.draw();
    }

    // From the 5th to the 99th percentile of the patches, as in figures: no other token sets the scale.
    contrast() {
      const { rows, columns, prefix } = this.image;
      const { hidden, share } = this.paint;
      const all = Array.from({ length: rows * columns }, (_, k) => (hidden(prefix + k) ? 0 : share(prefix + k)));
      const signed = all.some((x) => x < 0);
      const sorted = all.map((x) => (signed ? Math.abs(x) : x)).sort((a, b) => a - b);
      const low = signed ? 0 : percentile(sorted, 5);
      const span = percentile(sorted, 99) - low || 1;
      return all.map((x) => Math.max(signed ? -1 : 0, Math.min(1, (x - low) / span)));
    }

    draw() {
      const { rows, columns, prefix, height, width } = this.image;
      if (!this.paint || this.root.clientWidth === 0) return;
      const wide = Math.min(this.root.clientWidth, 560);
      const high = (wide * height) / width;
      const pen = sharpen(this.canvas, wide, high);
      const look = colours(this.root);
      if (this.photo?.complete) pen.drawImage(this.photo, 0, 0, wide, high);
      const [w, h] = [wide / columns, high / rows];
      this.patch = null;
      const shares = this.contrast();
      for (let k = 0; k < rows * columns; k++) {
        const [x, y] = [(k % columns) * w, Math.floor(k / columns) * h];
        const share = shares[k];
        pen.globalAlpha = this.photo ? 0.78 * Math.min(1, Math.abs(share)) : 1;
        pen.fillStyle = look.shade(this.photo ? Math.sign(share) : share);
        pen.fillRect(x, y, w + 0.5, h + 0.5);
        pen.globalAlpha = 1;
        if (this.paint.rows.includes(this.targetOf(prefix + k))) {
          this.patch = k;
          pen.strokeStyle = look.mark;
          pen.lineWidth = 3;
          pen.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
        }
      }
    }
  }

  Object.assign(attnflow, { Picture });
})((globalThis.attnflow ??= {}));
