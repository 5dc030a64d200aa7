// Making elements. Text goes in as text, never as markup: a token may be a script tag.
(function (attnflow) {
  "use strict";

  function make(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function draw(name, attributes = {}, text = null) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  }

  // Colours come from the style sheet, so a canvas follows dark and light like everything else.
  function colours(element) {
    const style = getComputedStyle(element);
    const read = (name) => style.getPropertyValue(name).trim();
    const parse = (name) => {
      const hex = read(name);
      return [1, 3, 5].map((k) => Number.parseInt(hex.slice(k, k + 2), 16));
    };
    const paper = parse("--af-paper");
    const ends = { more: parse("--af-more"), less: parse("--af-less") };
    const between = (share, end) =>
      `rgb(${paper.map((low, k) => Math.round(low + (ends[end][k] - low) * share)).join(" ")})`;
    return {
      ink: read("--af-ink"),
      quiet: read("--af-quiet"),
      line: read("--af-line"),
      mark: read("--af-mark"),
      shade: (share) => between(Math.min(1, Math.abs(share)), share < 0 ? "less" : "more"),
    };
  }

  // A canvas as sharp as the screen; drawing is in CSS pixels.
  function sharpen(canvas, width, height) {
    const ratio = globalThis.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  }

  // What colours stand for: a strip from the weakest to the strongest, its ends named.
  class ColourScale {
    constructor(kind = "") {
      this.ends = [make("span"), make("span")];
      this.root = make("span", { class: "af-scale", role: "img" }, this.ends[0], make("i", { class: kind }), this.ends[1]);
    }

    update(low, high, signed = false) {
      this.root.classList.toggle("af-signed", signed);
      this.ends[0].textContent = low;
      this.ends[1].textContent = high;
      this.root.setAttribute("aria-label", `Colours from ${low} to ${high}`);
    }
  }

  Object.assign(attnflow, { make, draw, colours, sharpen, ColourScale });
})((globalThis.attnflow ??= {}));
