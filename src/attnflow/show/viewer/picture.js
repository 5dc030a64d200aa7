// An image with what the target draws on laid over it; a click on a patch makes it the target.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen } = attnflow;

  // As numpy.percentile: linear between the two nearest of the sorted values.
  function percentile(sorted, percent) {
    const place = ((sorted.length - 1) * percent) / 100;
    const below = Math.floor(place);
    const above = Math.min(below + 1, sorted.length - 1);
    return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
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

    // From the 5th to the 99th percentile of the patches, as in figures: tokens that are no patches
    // never set the scale. Signed values are held against the 99th percentile of their sizes.
    contrast() {
      const { rows, columns, prefix } = this.image;
      const shares = Array.from({ length: rows * columns }, (_, k) => (this.paint.hidden(prefix + k) ? 0 : this.paint.share(prefix + k)));
      const signed = shares.some((share) => share < 0);
      const sorted = (signed ? shares.map(Math.abs) : shares.slice()).sort((a, b) => a - b);
      const high = percentile(sorted, 99);
      const low = signed ? 0 : percentile(sorted, 5);
      const span = high - low || 1;
      return shares.map((share) => (signed ? Math.max(-1, Math.min(1, share / span)) : Math.max(0, Math.min(1, (share - low) / span))));
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
