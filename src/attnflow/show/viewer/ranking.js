// What it draws on: documents as cards with their share and strongest sentence, then words.
(function (attnflow) {
  "use strict";

  const { make, measure } = attnflow;
  const CARDS = 6;
  const WORDS = 8;

  class Ranking {
    constructor({ onPassage, onWord, onCut }) {
      this.cards = make("ol", { class: "af-cards", "aria-label": "Documents, strongest first" });
      this.body = make("tbody");
      this.rows = [];
      this.callbacks = { onPassage, onWord, onCut };
      this.caption = make("caption", { class: "af-unseen" }, "The strongest words");
      this.table = make("table", { class: "af-strongest" }, this.caption, this.body);
      this.note = make("p", { class: "af-legend" }, "◦ saturated: the flow is the same for any target.");
      this.root = make("div", { class: "af-ranking" }, this.cards, this.table, this.note);
    }

    // passages: [{name, share, sentence, pieces: [{text, share}]}], strongest first;
    // words: [{name, value, share, saturated, source}]
    update({ passages, words, total, unit, cuttable, source }) {
      this.cards.hidden = passages.length === 0;
      this.note.hidden = !words.slice(0, WORDS).some((word) => word.saturated);
      this.cards.replaceChildren(...passages.slice(0, CARDS).map((passage, k) => this.card(passage, k)));
      while (this.rows.length < Math.min(WORDS, words.length)) this.addRow();
      this.table.classList.toggle("af-signed", unit === "difference");
      this.rows.forEach((row, k) => {
        row.element.hidden = k >= words.length;
        if (k >= words.length) return;
        const word = words[k];
        row.word = word;
        row.name.textContent = word.name;
        row.value.textContent = word.text + (word.saturated ? " ◦" : "");
        row.value.title = word.saturated ? "saturated: the same for any target" : String(word.value);
        row.bar.style.setProperty("--share", Math.min(1, Math.abs(word.share)).toFixed(3));
        row.bar.classList.toggle("af-less", word.share < 0);
        row.cell.hidden = !cuttable;
        row.button.setAttribute("aria-pressed", word.source === source ? "true" : "false");
        row.button.setAttribute("aria-label", `cut: what holds the flow from ${word.name} back`);
      });
    }

    card(passage, k) {
      const bar = make("span", { class: "af-card-bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", passage.share.toFixed(3));
      const head = make(
        "button",
        { type: "button", class: "af-card-head", onclick: () => this.callbacks.onPassage(passage) },
        make("span", { class: "af-card-name" }, passage.name),
        make("span", { class: "af-card-share" }, measure(passage.share, 1, "share")),
      );
      const quote = make("p", { class: "af-quote" });
      for (const { text, share } of passage.pieces) {
        const piece = make("span", { class: "af-piece" });
        piece.textContent = text;
        piece.style.setProperty("--share", `${Math.round(70 * share)}%`);
        quote.append(piece);
      }
      return make("li", { class: k === 0 ? "af-card af-first" : "af-card" }, head, bar, k < 3 ? quote : null);
    }

    addRow() {
      const row = { word: null };
      const choose = () => this.callbacks.onWord(row.word);
      row.name = make("button", { type: "button", class: "af-word", onclick: choose });
      row.value = make("td", { class: "af-number" });
      row.bar = make("div", { class: "af-bar" });
      row.button = make("button", { type: "button", class: "af-cut", title: "What holds it back?" }, "cut");
      row.button.addEventListener("click", () => this.callbacks.onCut(row.word.source));
      row.cell = make("td", { class: "af-cuts" }, row.button);
      const bars = make("td", { class: "af-bars" }, make("div", { class: "af-axis" }, row.bar));
      row.element = make("tr", {}, make("th", { scope: "row" }, row.name), bars, row.value, row.cell);
      this.rows.push(row);
      this.body.append(row.element);
    }
  }

  Object.assign(attnflow, { Ranking });
})((globalThis.attnflow ??= {}));
