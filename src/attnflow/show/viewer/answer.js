// The answer, first and large: what was generated as words to click, sentence by sentence; or what
// the model says of a text.
(function (attnflow) {
  "use strict";

  const { make, wordsOf, visible } = attnflow;
  const UNITS = { word: "word", sentence: "sentence", answer: "whole answer" };
  let counter = 0;

  class AnswerPanel {
    // texts: of the generated tokens; statements: lists of their numbers; mapsOf: what stands under
    // a word, where the answer is about images
    constructor(texts, statements, { onPick, onHover, onUnit, mapsOf = null }) {
      this.texts = texts;
      this.statements = statements.length ? statements : [texts.map((_, k) => k)];
      this.words = wordsOf(texts);
      this.callbacks = { onPick, onHover, onUnit };
      this.unit = "word";
      this.prefix = `af-answer-${++counter}-`;
      this.elements = this.words.map((word, k) => this.word(word, k));
      this.body = make("div", {
        class: "af-answer-text",
        role: "listbox",
        tabindex: "0",
        "aria-label": "The answer. Arrow keys walk through it; u changes between word, sentence and whole answer.",
      });
      this.gaps = this.elements.map((_, k) => (k && this.spaced(k) ? make("span", { class: "af-gap" }, " ") : null));
      if (mapsOf) this.body.classList.add("af-with-maps");
      this.maps = mapsOf ? this.words.map(() => mapsOf()) : [];
      const shown = this.elements.map((element, k) => (mapsOf ? make("span", { class: "af-mapped", "data-word": k }, element, this.maps[k].root) : element));
      this.body.append(...shown.flatMap((element, k) => (this.gaps[k] && !mapsOf ? [this.gaps[k], element] : [element])));
      this.buttons = Object.entries(UNITS).map(([unit, name]) =>
        make("button", { type: "button", class: "af-unit", "data-unit": unit, onclick: () => onUnit(unit) }, name),
      );
      this.root = make(
        "div",
        { class: "af-answer" },
        this.body,
        make("div", { class: "af-units", role: "group", "aria-label": "What to explain" }, make("span", {}, "Explain a"), ...this.buttons),
      );
      this.body.addEventListener("click", (event) => this.pick(event));
      this.body.addEventListener("pointerover", (event) => onHover(this.rowsAt(event.target)));
      this.body.addEventListener("pointerleave", () => onHover(null));
      this.body.addEventListener("keydown", (event) => this.key(event));
    }

    spaced(k) {
      const first = this.words[k][0];
      const isStatement = this.statements.some((rows) => rows.length === 1 && rows[0] === first);
      return isStatement || /^\s/.test(this.texts[first]); // a row of a whole sentence has no space of its own
    }

    word(word, k) {
      const element = make("span", {
        class: "af-token af-written",
        role: "option",
        id: this.prefix + k,
        "data-word": k,
        "aria-selected": "false",
      });
      element.textContent = visible(word.map((t) => this.texts[t]).join("").trim());
      return element;
    }

    rowsAt(element) {
      const number = element.closest?.("[data-word]")?.dataset.word;
      return number === undefined ? null : this.unitRows(this.words[Number(number)][0]);
    }

    // The rows of the word, sentence or answer that holds a token.
    unitRows(token) {
      if (this.unit === "answer") return this.texts.map((_, k) => k);
      const units = this.unit === "sentence" ? this.statements : this.words;
      return units.find((rows) => rows.includes(token)) ?? this.words.find((rows) => rows.includes(token));
    }

    pick(event) {
      const rows = this.rowsAt(event.target);
      if (rows) this.callbacks.onPick(rows);
    }

    key(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const order = Object.keys(UNITS);
      if (event.key === "u") {
        this.callbacks.onUnit(order[(order.indexOf(this.unit) + 1) % order.length]);
        return;
      }
      const units = this.unit === "answer" ? [this.texts.map((_, k) => k)] : this.unit === "sentence" ? this.statements : this.words;
      const at = units.findIndex((rows) => rows.includes(this.rows?.[0] ?? 0));
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -units.length, End: units.length };
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.callbacks.onPick(units[Math.max(0, Math.min(units.length - 1, at + steps[event.key]))]);
    }

    update(rows, unit) {
      this.unit = unit;
      this.rows = rows;
      const chosen = new Set(rows);
      this.words.forEach((word, k) => {
        const on = word.some((token) => chosen.has(token));
        this.elements[k].classList.toggle("af-chosen", on);
        const before = k > 0 && this.words[k - 1].some((token) => chosen.has(token));
        this.gaps[k]?.classList.toggle("af-chosen-gap", on && before);
        this.elements[k].setAttribute("aria-selected", on ? "true" : "false");
        if (on && word.includes(rows[0])) this.body.setAttribute("aria-activedescendant", this.prefix + k);
      });
      for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.unit === unit ? "true" : "false");
    }
  }

  Object.assign(attnflow, { AnswerPanel });
})((globalThis.attnflow ??= {}));
