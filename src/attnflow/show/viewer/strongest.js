// The strongest sources as a table: the numbers behind the colours, for eyes and screen readers.
(function (attnflow) {
  "use strict";

  const { make, visible, format } = attnflow;
  const LISTED = 10;

  class Strongest {
    constructor({ onSource }) {
      this.body = make("tbody");
      this.onSource = onSource;
      this.rows = [];
      this.root = make(
        "table",
        { class: "af-strongest" },
        make("caption", { class: "af-unseen" }, "The strongest sources"),
        make(
          "thead",
          {},
          make("tr", {}, ...["source", "value", ""].map((name) => make("th", { scope: "col" }, name))),
        ),
        this.body,
      );
    }

    // order: sources, strongest first; cuttable: whether a cut can be asked for
    update({ order, value, share, names, positions, saturated, cuttable, source }) {
      const listed = order.slice(0, LISTED);
      while (this.rows.length < listed.length) this.addRow();
      this.rows.forEach((row, k) => {
        row.element.hidden = k >= listed.length;
        if (k >= listed.length) return;
        const at = listed[k];
        row.source = at;
        row.name.textContent = visible(names[at]).trim();
        row.name.title = `position ${positions[at]}`;
        row.value.textContent = format(value(at)) + (saturated(at) ? " ◦" : "");
        row.value.title = saturated(at) ? "saturated: the same for any target" : "";
        row.bar.style.setProperty("--share", Math.min(1, Math.abs(share(at))).toFixed(3));
        row.bar.classList.toggle("af-less", share(at) < 0);
        row.button.hidden = !cuttable;
        row.button.setAttribute("aria-pressed", at === source ? "true" : "false");
        row.button.setAttribute("aria-label", `Minimum cut to ${visible(names[at]).trim()}`);
      });
    }

    addRow() {
      const row = { source: 0 };
      row.name = make("th", { scope: "row" });
      row.value = make("td", { class: "af-number" });
      row.bar = make("div", { class: "af-bar" });
      row.button = make("button", { type: "button", class: "af-cut", title: "What holds it back?" }, "cut");
      row.button.addEventListener("click", () => this.onSource(row.source));
      row.element = make("tr", {}, row.name, row.value, make("td", { class: "af-bars" }, row.bar, row.button));
      this.rows.push(row);
      this.body.append(row.element);
    }
  }

  Object.assign(attnflow, { Strongest });
})((globalThis.attnflow ??= {}));
