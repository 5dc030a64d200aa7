// The text: every token in its place, shaded by what the target draws from it. Only the lines in
// sight are elements; the rest is a number of pixels.
(function (attnflow) {
  "use strict";

  const { make, visible, breakLines } = attnflow;
  const LINE = 30; // pixels; the style sheet says the same
  const BEYOND = 6; // lines kept above and below what is seen
  let counter = 0;

  const isSpace = (text) => /^[^\S\n]+$/.test(text);

  // The space before a token stands outside it, so that shading fits the word.
  function parts(text, marks) {
    if (!marks && text.includes("\n")) return text.trim() ? parts(text.replaceAll("\n", ""), true) : ["", ""];
    const spaced = /^[^\S\n]/u.test(text) && text.trim() !== "";
    if (isSpace(text)) return ["", text];
    return spaced ? [" ", visible(text.slice(1))] : ["", visible(text)];
  }

  class TextPanel {
    // headings: names by the number of the item they stand before
    constructor(items, { label, onHover, onPick, onMove, headings = new Map() }) {
      this.items = items;
      this.headings = headings;
      this.texts = items.map((item) => item.text);
      this.framing = items.map((item) => item.framing && !isSpace(item.text));
      this.marks = false; // whether line ends and the signs of a chat are shown
      this.prefix = `af-${++counter}-token-`;
      this.live = new Map(); // line number -> element
      this.paint = null;
      this.body = make("div", { class: "af-lines" });
      this.root = make(
        "div",
        { class: "af-text", role: "listbox", tabindex: "0", "aria-label": label },
        this.body,
      );
      this.pen = document.createElement("canvas").getContext("2d");
      this.widths = new Map();
      this.root.addEventListener("scroll", () => this.show(), { passive: true });
      this.root.addEventListener("pointerover", (event) => onHover(this.itemOf(event.target)));
      this.root.addEventListener("pointerleave", () => onHover(null));
      this.root.addEventListener("click", (event) => onPick(this.itemOf(event.target)));
      this.root.addEventListener("keydown", (event) => onMove(event));
      new ResizeObserver(() => this.layout()).observe(this.root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    }

    itemOf(element) {
      const number = element.closest?.("[data-item]")?.dataset.item;
      return number === undefined ? null : this.items[Number(number)];
    }

    measure(text) {
      let width = this.widths.get(text);
      if (width === undefined) {
        width = this.pen.measureText(parts(text, this.marks).join("")).width;
        this.widths.set(text, width);
      }
      return width;
    }

    layout() {
      const width = this.root.clientWidth - 26; // the panel's padding, and a hair
      if (width <= 0 || width === this.width) return;
      this.width = width;
      this.pen.font = getComputedStyle(this.body).font;
      this.widths.clear();
      this.lines = this.headedLines(width);
      this.lineOf = new Int32Array(this.items.length);
      this.lines.forEach(({ start, end }, line) => this.lineOf.fill(line, start, end));
      this.body.style.height = `${this.lines.length * LINE}px`;
      this.body.replaceChildren();
      this.live.clear();
      this.show();
    }

    // Lines of tokens, a passage beginning on a line of its own, below its name.
    headedLines(width) {
      const starts = [...this.headings.keys()].sort((a, b) => a - b);
      const cuts = [...new Set([0, ...starts, this.texts.length])].sort((a, b) => a - b);
      const lines = [];
      for (let k = 0; k + 1 < cuts.length; k++) {
        const from = cuts[k];
        if (this.headings.has(from)) lines.push({ start: lines.at(-1)?.end ?? 0, end: from, heading: this.headings.get(from) });
        const part = breakLines(this.texts.slice(from, cuts[k + 1]), width, (text) => this.measure(text));
        for (const [start, end] of part) this.addLineOf(lines, from + start, from + end);
      }
      return lines;
    }

    // A line without a word in sight is none: its tokens go with the line before.
    addLineOf(lines, start, end) {
      const empty = !this.marks && this.framing.slice(start, end).every(Boolean);
      if (empty && lines.length) lines.at(-1).end = end;
      else if (!empty || end === this.texts.length) lines.push({ start: lines.at(-1)?.end ?? 0, end });
    }

    isUnseen(target) {
      return !this.marks && this.framing[this.items.findIndex((item) => item.target === target)];
    }

    showMarks(marks) {
      if (marks === this.marks) return;
      this.marks = marks;
      this.width = null;
      this.layout();
    }

    show() {
      if (!this.lines) return;
      const first = Math.max(0, Math.floor(this.root.scrollTop / LINE) - BEYOND);
      const seen = Math.ceil(this.root.clientHeight / LINE) + 2 * BEYOND;
      const last = Math.min(this.lines.length, first + seen);
      for (const [line, element] of this.live) {
        if (line < first || line >= last) {
          element.remove();
          this.live.delete(line);
        }
      }
      for (let line = first; line < last; line++) {
        if (!this.live.has(line)) this.addLine(line);
      }
    }

    addLine(line) {
      const element = make("div", { class: "af-line" });
      element.style.top = `${line * LINE}px`;
      const { start, end, heading } = this.lines[line];
      if (heading !== undefined) element.append(make("b", { class: "af-heading" }, heading));
      for (let k = start; k < end; k++) {
        const [space, shown] = parts(this.texts[k], this.marks);
        if (space && element.querySelector("span:not([hidden])")) element.append(space);
        element.append(this.token(k, shown));
      }
      this.live.set(line, element);
      this.body.append(element); // reading order is by aria-posinset, whatever the order here
      if (this.paint) this.paintLine(element);
    }

    token(k, text) {
      const item = this.items[k];
      const blank = this.framing[k] ? " af-blank" : "";
      const kind = blank + (item.target === null ? " af-source-only" : item.source === null ? " af-written" : "");
      const made = make("span", {
        class: `af-token${kind}`,
        id: this.prefix + k,
        role: "option",
        "data-item": k,
        "aria-posinset": k + 1,
        "aria-setsize": this.items.length,
        "aria-disabled": item.target === null ? "true" : null,
        hidden: this.framing[k] && !this.marks,
      });
      made.textContent = text;
      return made;
    }

    // paint: {share(source), number(source), hidden(source), saturated(source), rows}
    update(paint) {
      this.paint = paint;
      this.repaint();
      const at = this.items.findIndex((item) => item.target !== null && item.target === paint.rows[0]);
      if (at >= 0) this.root.setAttribute("aria-activedescendant", this.prefix + at);
    }

    repaint() {
      if (!this.paint) return;
      this.flip = Number(getComputedStyle(this.root).getPropertyValue("--af-flip"));
      for (const element of this.live.values()) this.paintLine(element);
    }

    paintLine(line) {
      for (const element of line.querySelectorAll(".af-token")) {
        const item = this.items[Number(element.dataset.item)];
        const chosen = item.target !== null && this.paint.rows.includes(item.target);
        element.classList.toggle("af-chosen", chosen);
        element.setAttribute("aria-selected", chosen ? "true" : "false");
        if (item.source !== null) this.paintSource(element, item.source);
      }
    }

    paintSource(element, source) {
      const { share, number, hidden, saturated } = this.paint;
      const part = hidden(source) ? 0 : share(source);
      const percent = Math.round(Math.min(1, Math.abs(part)) * 100);
      element.style.setProperty("--share", `${percent}%`);
      element.classList.toggle("af-less", part < 0);
      element.classList.toggle("af-deep", percent > this.flip);
      element.classList.toggle("af-hidden", hidden(source));
      element.classList.toggle("af-saturated", saturated(source));
      const said = hidden(source) ? "left out" : number(source);
      element.title = `${element.textContent}: ${said}${saturated(source) ? ", saturated" : ""}`;
      element.setAttribute("aria-label", `${element.textContent.trim()}, ${said}`);
    }

    // Scroll to a source, a third of the way down, unless it is in sight.
    revealSource(source) {
      const at = this.items.findIndex((item) => item.source === source);
      if (at < 0 || !this.lines) return;
      const top = this.lineOf[at] * LINE;
      const { scrollTop, clientHeight } = this.root;
      if (top >= scrollTop && top + LINE <= scrollTop + clientHeight) return;
      this.root.scrollTop = Math.max(0, top - clientHeight / 3);
      this.show();
    }

    // Scroll just enough for a token to be in sight.
    reveal(target) {
      const at = this.items.findIndex((item) => item.target === target);
      if (at < 0 || !this.lines) return;
      const top = this.lineOf[at] * LINE;
      const { scrollTop, clientHeight } = this.root;
      if (top < scrollTop) this.root.scrollTop = top;
      else if (top + LINE > scrollTop + clientHeight) this.root.scrollTop = top + 2 * LINE - clientHeight;
      this.show();
    }
  }

  Object.assign(attnflow, { TextPanel });
})((globalThis.attnflow ??= {}));
