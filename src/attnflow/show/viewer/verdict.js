// What the answer, or a statement of it, rests on: the claim, the number behind it, two bars.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;

  class VerdictPanel {
    constructor() {
      this.sentence = make("p");
      this.bars = make("dl");
      this.root = make("section", { class: "af-verdict", "aria-label": "What it rests on", hidden: true }, this.sentence, this.bars);
    }

    // verdict: of the statement or the answer in sight, or null where nothing was hidden
    update(verdict) {
      if (verdict === this.drawn) return;
      this.drawn = verdict;
      this.root.hidden = !verdict;
      this.root.classList.toggle("af-ungrounded", verdict?.kind === "none");
      if (!verdict) return;
      const [claim, reason] = [verdict.claim, verdict.reason].map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`.replaceAll(" %", "\u00a0%"));
      this.sentence.replaceChildren(make("strong", {}, claim), ` ${reason}`);
      this.bars.replaceChildren(...verdict.bars.flatMap((bar, k) => this.bar(bar, k ? "af-without" : "")));
    }

    bar({ label, share, number }, kind) {
      const bar = make("span", { class: `af-verdict-bar ${kind}`, "aria-hidden": "true" });
      bar.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(4));
      return [make("dt", {}, label), make("dd", {}, bar, make("span", {}, number))];
    }
  }

  Object.assign(attnflow, { VerdictPanel });
})((globalThis.attnflow ??= {}));
