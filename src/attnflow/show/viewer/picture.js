// An image with what the target draws on laid over it; a click on a patch makes it the target. Under
// each word of an answer stands the same map in small.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen } = attnflow;
  const SMALL = 104; // pixels: the width of a map under a word
  const MOST_SMALL = 3; // images that are drawn under each word
  const COVER = 0.78; // of the photo under the strongest patch

  function percentile(sorted, percent) {
    const place = ((sorted.length - 1) * percent) / 100;
    const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
    return below + (above - below) * (place % 1);
  }

  const patchesOf = ({ rows, columns, prefix, start }) => Array.from({ length: rows * columns }, (_, k) => start + prefix + k);

  // Values of sources to shares from 0 to 1, or from −1: from the 5th to the 99th percentile of all
  // patches, as in figures. No other token sets the scale, and images can be held against each other.
  function contrast(images, value) {
    const all = images.flatMap(patchesOf).map(value);
    const signed = all.some((x) => x < 0);
    const sorted = all.map((x) => (signed ? Math.abs(x) : x)).sort((a, b) => a - b);
    const low = signed ? 0 : percentile(sorted, 5);
    const span = percentile(sorted, 99) - low || 1;
    return (source) => Math.max(signed ? -1 : 0, Math.min(1, (value(source) - low) / span));
  }

  // The photo, and over it every patch by its share; without a photo the patches alone.
  function lay(pen, image, photo, share, look, [wide, high]) {
    if (photo?.complete) {
      pen.filter = "grayscale(0.85)"; // a blue thing is not to be taken for a strong patch
      pen.drawImage(photo, 0, 0, wide, high);
      pen.filter = "none";
    }
    const [w, h] = [wide / image.columns, high / image.rows];
    patchesOf(image).forEach((source, k) => {
      const part = share(source);
      pen.globalAlpha = photo ? COVER * Math.min(1, Math.abs(part)) : 1;
      pen.fillStyle = look.shade(photo ? Math.sign(part) : part);
      pen.fillRect((k % image.columns) * w, Math.floor(k / image.columns) * h, w + 0.5, h + 0.5);
    });
    pen.globalAlpha = 1;
    return [w, h];
  }

  // The photos of a document, loaded once for all that draw them.
  function photosOf(images) {
    return images.map(({ picture }) => {
      if (!picture) return null;
      const photo = new Image();
      photo.src = picture;
      return photo;
    });
  }

  // The maps of one word in small, side by side.
  class SmallMaps {
    constructor(images, photos, name) {
      this.images = images.slice(0, MOST_SMALL);
      this.photos = photos;
      this.canvases = this.images.map((image) =>
        make("canvas", { class: "af-small-map", role: "img", "aria-label": `${image.name}: what ${name} draws on` }),
      );
      this.root = make("span", { class: "af-small-maps" }, ...this.canvases);
      for (const photo of photos) photo?.addEventListener("load", () => this.draw());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    update(share) {
      this.share = share;
      this.draw();
    }

    draw() {
      if (!this.share) return;
      const look = colours(this.root);
      this.images.forEach((image, k) => {
        const size = [SMALL, Math.round((SMALL * image.height) / image.width)];
        lay(sharpen(this.canvases[k], ...size), image, this.photos[k], this.share, look, size);
      });
    }
  }

  class Picture {
    constructor(image, photo, { onPatch, targetOf }) {
      this.image = image;
      this.photo = photo;
      this.targetOf = targetOf;
      this.first = image.start + image.prefix;
      this.canvas = make("canvas", { role: "img", "aria-label": "The image and its sources", tabindex: "0" });
      this.root = make("div", { class: "af-picture" }, this.canvas);
      photo?.addEventListener("load", () => this.draw());
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
      if (at >= 0 && at < this.image.rows * this.image.columns) onPatch(this.first + at);
    }

    patchAt(event) {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * this.image.rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.image.columns);
      const inside = row >= 0 && row < this.image.rows && column >= 0 && column < this.image.columns;
      return inside ? this.first + row * this.image.columns + column : null;
    }

    // paint: {patch(source): a share after contrast, rows}
    update(paint) {
      this.paint = paint;
      this.draw();
    }

    draw() {
      const { columns, height, width } = this.image;
      if (!this.paint || this.root.clientWidth === 0) return;
      const wide = Math.min(this.root.clientWidth, 560);
      const high = (wide * height) / width;
      const pen = sharpen(this.canvas, wide, high);
      const look = colours(this.root);
      const [w, h] = lay(pen, this.image, this.photo, this.paint.patch, look, [wide, high]);
      const at = patchesOf(this.image).findIndex((source) => this.paint.rows.includes(this.targetOf(source)));
      this.patch = at < 0 ? null : at;
      if (at < 0) return;
      pen.strokeStyle = look.mark;
      pen.lineWidth = 3;
      pen.strokeRect((at % columns) * w + 1.5, Math.floor(at / columns) * h + 1.5, w - 3, h - 3);
    }
  }

  Object.assign(attnflow, { Picture, SmallMaps, contrast, photosOf });
})((globalThis.attnflow ??= {}));
