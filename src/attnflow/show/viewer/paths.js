// The way back: what a statement draws on, and where the model wrote that itself, what that draws on.
(function (attnflow) {
  "use strict";

  const { make, measure } = attnflow;

  class PathPanel {
    constructor({ onStep }) {
      this.onStep = onStep;
      this.list = make("ul", { class: "af-steps" });
      this.root = make("section", { class: "af-path", "aria-label": "The way back, step by step", hidden: true }, make("h3", {}, "The way back, step by step"), this.list);
    }

    // path: of the statement in sight, or null where nothing was carried on
    update(path) {
      if (path === this.drawn) return;
      this.drawn = path;
      this.root.hidden = !path?.steps.length;
      this.list.replaceChildren(...(path?.steps ?? []).map((step, k) => this.step(step, k === 0)));
    }

    // A step that the model wrote opens onto the steps behind it; the strongest way is open.
    step(step, open) {
      const name = make("button", { type: "button", class: "af-step", onclick: () => this.onStep(step) }, step.place);
      const kind = step.is_written ? "the model wrote" : "given";
      const head = [name, make("span", { class: "af-step-share" }, `${measure(step.share, 1, "share")}, ${kind}`), make("q", {}, step.text)];
      if (!step.steps.length) return make("li", {}, ...head);
      const steps = make("ul", { class: "af-steps" }, ...step.steps.map((each, k) => this.step(each, k === 0)));
      return make("li", {}, make("details", { open }, make("summary", {}, ...head), steps));
    }
  }

  Object.assign(attnflow, { PathPanel });
})((globalThis.attnflow ??= {}));
