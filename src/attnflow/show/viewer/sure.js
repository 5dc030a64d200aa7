// How sure? What the answer's probability is with the named sources, and with all of them hidden.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;

  class HowSure {
    constructor() {
      this.sentence = make("p");
      this.bars = make("dl");
      this.root = make("section", { class: "af-sure", "aria-label": "How sure is this?", hidden: true }, this.sentence, this.bars);
    }

    // confirmation: of the result in sight, or null where none was measured
    update(confirmation) {
      if (confirmation === this.drawn) return;
      this.drawn = confirmation;
      this.root.hidden = !confirmation;
      if (!confirmation) return;
      const them = confirmation.sources.length === 1 ? "it" : "them";
      this.sentence.replaceChildren(make("strong", {}, "How sure? "), `${confirmation.sentence} ${confirmation.verdict ?? ""}`);
      this.bars.replaceChildren(
        ...this.bar(`with ${them}`, confirmation.probability, ""),
        ...this.bar(`without ${them}`, confirmation.probability_without, "af-without"),
      );
    }

    bar(name, probability, kind) {
      const bar = make("span", { class: `af-sure-bar ${kind}`, "aria-hidden": "true" });
      bar.style.setProperty("--share", Math.max(0, Math.min(1, probability)).toFixed(4));
      const number = probability >= 0.005 ? probability.toFixed(2) : probability.toPrecision(1);
      return [make("dt", {}, name), make("dd", {}, bar, make("span", {}, `p ${number}`))];
    }
  }

  Object.assign(attnflow, { HowSure });
})((globalThis.attnflow ??= {}));
