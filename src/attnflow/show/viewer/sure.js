// How sure? What the answer's probability is with the named sources, and with all of them hidden;
// of a statement that was checked, what it rests on.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;

  class HowSure {
    constructor() {
      this.sentence = make("p");
      this.bars = make("dl");
      this.root = make("section", { class: "af-sure", "aria-label": "How sure is this?", hidden: true }, this.sentence, this.bars);
    }

    // confirmation: of the result in sight, or null where none was measured; verdict: of the
    // statement in sight, which goes first
    update(confirmation, verdict) {
      const shown = verdict ?? confirmation;
      if (shown === this.drawn) return;
      this.drawn = shown;
      this.root.hidden = !shown;
      this.root.classList.toggle("af-verdict", Boolean(verdict));
      this.root.classList.toggle("af-ungrounded", verdict?.kind === "none");
      if (!shown) return;
      if (verdict) {
        const claim = verdict.claim[0].toUpperCase() + verdict.claim.slice(1);
        this.sentence.replaceChildren(make("strong", {}, `${claim}. `), `${verdict.reason[0].toUpperCase()}${verdict.reason.slice(1)}.`);
        this.bars.replaceChildren(...verdict.bars.flatMap((bar, k) => this.bar(bar.label, bar.probability, k ? "af-without" : "", bar.number)));
        return;
      }
      const them = confirmation.sources.length === 1 ? "it" : "them";
      this.sentence.replaceChildren(make("strong", {}, "How sure? "), `${confirmation.sentence} ${confirmation.verdict ?? ""}`);
      this.bars.replaceChildren(
        ...this.bar(`with ${them}`, confirmation.probability, ""),
        ...this.bar(`without ${them}`, confirmation.probability_without, "af-without"),
      );
    }

    bar(name, probability, kind, text = null) {
      const bar = make("span", { class: `af-sure-bar ${kind}`, "aria-hidden": "true" });
      bar.style.setProperty("--share", Math.max(0, Math.min(1, probability)).toFixed(4));
      const number = probability >= 0.005 ? probability.toFixed(2) : probability.toPrecision(1);
      return [make("dt", {}, name), make("dd", {}, bar, make("span", {}, text ?? `p ${number}`))];
    }
  }

  Object.assign(attnflow, { HowSure });
})((globalThis.attnflow ??= {}));
