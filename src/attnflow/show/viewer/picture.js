// An image with what the target draws on laid over it; a click on a patch makes it the target. Under
// each word of an answer stands the same map in small.
(function (attnflow) {
  "use strict";

  const { make, colours, sharpen, ColourScale } = attnflow;
  const SMALL = 104; // pixels: the width of a map under a word
  const MOST_SMALL = 3; // images that are drawn under each word
  const COVER = 0.7; // of the photo under the strongest patch, until someone moves the slider
  const WARM = [[255, 214, 70], [240, 110, 20], [196, 12, 24]]; // weak to strong, over a photo
  const COOL = [[150, 200, 255], [40, 110, 220], [10, 50, 150]]; // what speaks against it

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
    const high = percentile(sorted, 99);
    const share = (source) => Math.max(signed ? -1 : 0, Math.min(1, (value(source) - low) / (high - low || 1)));
    const total = all.reduce((sum, x) => sum + Math.abs(x), 0) || 1;
    return { share, ends: [signed ? -high : low, high].map((end) => (100 * end) / total), signed };
  }

  // The warm colour of a share, or the cool one of what is below zero.
  function warm(share) {
    const stops = share < 0 ? COOL : WARM;
    const place = Math.min(0.999, Math.abs(share)) * 2;
    const [from, to] = stops.slice(Math.floor(place));
    return `rgb(${from.map((low, k) => Math.round(low + (to[k] - low) * (place % 1))).join(" ")})`;
  }

  // The photo, and over it every patch by its share; without a photo the patches alone.
  function lay(pen, image, photo, share, [wide, high], cover = COVER) {
    if (photo?.complete) pen.drawImage(photo, 0, 0, wide, high);
    const [w, h] = [wide / image.columns, high / image.rows];
    patchesOf(image).forEach((source, k) => {
      const part = share(source);
      pen.globalAlpha = (photo ? cover : 1) * Math.min(1, Math.abs(part));
      pen.fillStyle = warm(part);
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
    constructor(images, photos) {
      this.images = images.slice(0, MOST_SMALL);
      this.photos = photos;
      // Hidden from a screen reader: the word is the option of a list, and its sentence says the region.
      this.canvases = this.images.map(() => make("canvas", { class: "af-small-map", "aria-hidden": "true" }));
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
      this.images.forEach((image, k) => {
        const size = [SMALL, Math.round((SMALL * image.height) / image.width)];
        lay(sharpen(this.canvases[k], ...size), image, this.photos[k], this.share, size);
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

    // paint: {patch(source): a share after contrast, rows, cover: of the photo under the strongest}
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
      const [w, h] = lay(pen, this.image, this.photo, this.paint.patch, [wide, high], this.paint.cover);
      const at = patchesOf(this.image).findIndex((source) => this.paint.rows.includes(this.targetOf(source)));
      this.patch = at < 0 ? null : at;
      if (at < 0) return;
      pen.strokeStyle = colours(this.root).mark;
      pen.lineWidth = 3;
      pen.strokeRect((at % columns) * w + 1.5, Math.floor(at / columns) * h + 1.5, w - 3, h - 3);
    }
  }

  // How much of the photo the map covers, and what its colours stand for.
  class Overlay {
    constructor({ onChange }) {
      this.slider = make("input", { type: "range", min: "0", max: "100", value: String(100 * COVER), name: "cover", "aria-label": "how much of the photo the map covers", oninput: onChange });
      this.scale = new ColourScale("af-warm");
      this.root = make("div", { class: "af-overlay" }, make("label", { class: "af-field" }, "photo", this.slider, "map"), this.scale.root);
    }

    get cover() {
      return Number(this.slider.value) / 100;
    }

    update([low, high], signed) {
      const percent = (share) => `${share.toFixed(Math.abs(share) < 9.5 ? 1 : 0)} %`;
      this.scale.update(percent(low), `${percent(high)} of the picture’s share, a patch`, signed);
    }
  }

  Object.assign(attnflow, { Picture, Overlay, SmallMaps, contrast, photosOf });
})((globalThis.attnflow ??= {}));
