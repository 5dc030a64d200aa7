// What can be chosen: method, layer, normalisation, and which sources are shown.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;
  const SCALES = { share: "with its unit", none: "as computed", max: "strongest = 1" };
  const TOPS = ["all", "3", "5", "10", "20", "50"];

  class Controls {
    constructor(results, state, onChange) {
      this.results = results;
      this.state = state;
      this.onChange = onChange;
      this.method = this.select("method", results.map((result, k) => [k, label(results, k)]), (value) => ({
        result: Number(value),
      }));
      const others = results.map((result, k) => [k, label(results, k)]);
      this.other = this.select("other", [["none", "nothing"], ...others], (value) => ({
        other: value === "none" ? null : Number(value),
      }));
      this.scale = this.select("scale", Object.entries(SCALES), (value) => ({ scale: value }));
      this.top = this.select("strongest", TOPS.map((name) => [name, name]), (value) => ({
        top: value === "all" ? null : Number(value),
      }));
      this.layer = make("input", { type: "range", min: "0", step: "1", name: "layer", "aria-label": "layer" });
      this.layer.addEventListener("input", () => onChange({ layer: Number(this.layer.value), mean: false }));
      this.layerName = make("output", { class: "af-output" });
      this.mean = this.checkbox("mean", (on) => ({ mean: on }));
      this.common = this.checkbox("common", (on) => ({ hideCommon: on }));
      this.marks = this.checkbox("marks", (on) => ({ marks: on }));
      this.least = make("input", { type: "range", min: "0", max: "60", step: "1", name: "threshold", "aria-label": "hide below" });
      this.least.addEventListener("input", () => onChange({ least: Number(this.least.value) / 100 }));
      this.leastName = make("output", { class: "af-output" });
      this.root = make(
        "div",
        { class: "af-controls", role: "group", "aria-label": "What is shown" },
        field("Method", this.method),
        make("div", { class: "af-field af-wide" }, make("span", {}, "Layer"), this.layer, this.layerName, labelled(this.mean, "mean of layers")),
        results.length > 1 ? field("Beside it", this.other) : null,
        field("Numbers", this.scale),
        field("Strongest", this.top),
        make("div", { class: "af-field" }, make("span", {}, "Hide below"), this.least, this.leastName),
        make("div", { class: "af-field" }, labelled(this.common, "hide common words")),
        make("div", { class: "af-field" }, labelled(this.marks, "show markup and line ends")),
      );
    }

    select(name, options, change) {
      const made = make("select", { name }, ...options.map(([value, text]) => make("option", { value }, text)));
      made.addEventListener("change", () => this.onChange(change(made.value)));
      return made;
    }

    checkbox(name, change) {
      const made = make("input", { type: "checkbox", name });
      made.addEventListener("change", () => this.onChange(change(made.checked)));
      return made;
    }

    update() {
      const { state, results } = this;
      const result = results[state.result];
      this.method.value = String(state.result);
      this.layer.max = String(result.layers.length - 1);
      this.layer.value = String(state.layer);
      this.layer.disabled = result.layers.length < 2;
      const name = layerName(result, state.layer);
      this.layerName.textContent = state.mean ? "mean" : name.replace(/^layer /, "");
      this.layer.setAttribute("aria-valuetext", state.mean ? "mean of layers" : name);
      this.mean.checked = state.mean;
      this.scale.value = state.scale;
      this.other.value = state.other === null ? "none" : String(state.other);
      this.top.value = state.top === null ? "all" : String(state.top);
      this.least.value = String(Math.round(state.least * 100));
      this.leastName.textContent = state.least === 0 ? "off" : `${Math.round(state.least * 100)} %`;
      this.common.checked = state.hideCommon;
      this.marks.checked = state.marks;
    }
  }

  // A method in words, with those of its options that are not the default.
  function label(results, k) {
    return results[k].title;
  }

  // A layer in words; 0 is no layer of the model but a mean of them, or the model as it is run again.
  function layerName(result, k) {
    const number = result.layers[k];
    if (number === 0) return result.wholeModel ? "the whole model" : "mean of layers";
    return `layer ${number} of ${result.layers.at(-1)}`;
  }

  const field = (name, control) => make("label", { class: "af-field" }, make("span", {}, name), control);
  const labelled = (control, text) => make("label", { class: "af-check" }, control, text);

  Object.assign(attnflow, { Controls, layerName });
})((globalThis.attnflow ??= {}));
