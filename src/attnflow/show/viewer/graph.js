// The layered flow graph below the target: what flows down, and the cut that holds one flow back.
(function (attnflow) {
  "use strict";

  const { make, draw, visible, format, minimumCut } = attnflow;
  const STEP = 54; // between layers
  const LEFT = 62;
  const TOP = 30;
  const BOTTOM = 84; // room for slanted tokens
  const DRAWN = 220; // edges; more would be a grey cloud

  class FlowGraph {
    constructor(graph, names, { onSource }) {
      this.graph = graph;
      this.names = names.map((name) => visible(name).trim());
      this.onSource = onSource;
      this.svg = draw("svg", { role: "group" });
      this.frame = make("div", { class: "af-graph", tabindex: "0", "aria-label": "Flow graph" }, this.svg);
      this.said = make("p", { class: "af-said", "aria-live": "polite" });
      this.root = make("div", {}, this.said, this.frame);
      new ResizeObserver(() => this.render()).observe(this.frame);
    }

    update(layer, target, source) {
      const state = `${layer} ${target} ${source}`;
      if (state === this.state) return;
      Object.assign(this, { state, layer, target, source });
      this.render();
    }

    render() {
      if (this.layer === undefined || this.frame.clientWidth === 0) return;
      const n = this.graph.length;
      this.step = Math.max(15, Math.min(96, (this.frame.clientWidth - LEFT - 30) / n));
      const width = LEFT + n * this.step + 20;
      const height = TOP + this.layer * STEP + BOTTOM;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("height", height);
      const cut = this.source === null ? null : minimumCut(this.graph, this.layer, this.target, this.source);
      this.svg.replaceChildren(
        ...this.edges(),
        ...(cut ? this.cutEdges(cut) : []),
        ...this.nodes(),
        ...this.rowNames(),
        ...this.tokenNames(),
      );
      this.svg.setAttribute("aria-label", this.describe(cut));
      this.said.textContent = this.describe(cut);
    }

    x(j) {
      return LEFT + (j + 0.5) * this.step;
    }

    y(height) {
      return TOP + (this.layer - height) * STEP;
    }

    // How much of the target passes each node if every node shares out by its capacities.
    masses() {
      const { capacities, length: n, unit } = this.graph;
      const mass = Array.from({ length: this.layer + 1 }, () => new Float64Array(n));
      mass[this.layer][this.target] = 1;
      for (let m = this.layer - 1; m >= 0; m--) {
        for (let i = 0; i < n; i++) {
          if (mass[m + 1][i] < 1e-6) continue;
          for (let j = 0; j < n; j++) mass[m][j] += mass[m + 1][i] * capacities[m][i * n + j] * unit;
        }
      }
      return mass;
    }

    edges() {
      const { capacities, length: n, unit } = this.graph;
      const mass = (this.mass = this.masses());
      const found = [];
      for (let m = 0; m < this.layer; m++) {
        for (let i = 0; i < n; i++) {
          if (mass[m + 1][i] < 1e-4) continue;
          for (let j = 0; j < n; j++) {
            const weight = mass[m + 1][i] * capacities[m][i * n + j] * unit;
            if (weight > 1e-3) found.push({ m, i, j, weight });
          }
        }
      }
      found.sort((a, b) => b.weight - a.weight);
      return found.slice(0, DRAWN).map((edge) => this.line(edge, edge.weight, "af-edge", 0.12)).reverse();
    }

    cutEdges({ edges }) {
      return edges.slice(0, DRAWN).map((edge) => this.line(edge, edge.capacity, "af-cut-edge", 0.45));
    }

    line({ m, i, j }, weight, kind, faintest) {
      const line = draw("line", {
        x1: this.x(i),
        y1: this.y(m + 1),
        x2: this.x(j),
        y2: this.y(m),
        class: kind,
        "stroke-width": (0.6 + 7 * Math.sqrt(weight)).toFixed(2),
        "stroke-opacity": Math.min(1, faintest + 1.3 * Math.sqrt(weight)).toFixed(3),
      });
      line.append(
        draw("title", {}, `${this.names[i]} at layer ${this.number(m + 1)} to ${this.names[j]}: ${format(weight)}`),
      );
      return line;
    }

    number(height) {
      return height === 0 ? "input" : String(this.graph.layers[height - 1]);
    }

    nodes() {
      const found = [];
      for (let height = 0; height <= this.layer; height++) {
        for (let j = 0; j < this.graph.length; j++) {
          const end = (height === this.layer && j === this.target) || (height === 0 && j === this.source);
          const weight = this.mass[height][j];
          found.push(
            draw("circle", {
              cx: this.x(j),
              cy: this.y(height),
              r: end ? 6 : (1.5 + 5 * Math.sqrt(weight)).toFixed(2),
              class: end ? "af-node af-end" : "af-node",
            }),
          );
        }
      }
      return found;
    }

    rowNames() {
      const rows = Array.from({ length: this.layer + 1 }, (_, height) =>
        draw(
          "text",
          { x: 4, y: this.y(height) + 4, class: "af-row-name" },
          height === 0 ? "input" : `layer ${this.number(height)}`,
        ),
      );
      const top = draw("text", { x: this.x(this.target), y: TOP - 14, class: "af-top-name" });
      top.textContent = this.names[this.target];
      return [...rows, top];
    }

    tokenNames() {
      return this.names.map((name, j) => {
        const [x, y] = [this.x(j), this.y(0) + 18];
        const label = draw("text", {
          x,
          y,
          transform: `rotate(40 ${x} ${y})`,
          class: j === this.source ? "af-token-name af-end" : "af-token-name",
          role: "button",
          tabindex: "0",
          "aria-label": `Minimum cut to ${name}`,
        });
        label.textContent = name.length > 14 ? `${name.slice(0, 13)}…` : name;
        label.addEventListener("click", () => this.onSource(j));
        label.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          this.onSource(j);
        });
        return label;
      });
    }

    describe(cut) {
      const from = `“${this.names[this.target]}” at layer ${this.number(this.layer)}`;
      if (!cut) return `Paths down from ${from}. Choose a token below to see what holds its flow back.`;
      const to = `“${this.names[this.source]}”`;
      if (cut.edges.length === 0) return `No path leads from ${from} to ${to}.`;
      const count = cut.edges.length === 1 ? "1 edge" : `${cut.edges.length} edges`;
      return `Flow from ${from} to ${to}: ${format(cut.value)}, held back by ${count}${this.place(cut)}.`;
    }

    place(cut) {
      const byLayer = new Map();
      for (const { m, capacity } of cut.edges) byLayer.set(m, (byLayer.get(m) ?? 0) + capacity);
      if (byLayer.size === 1 && byLayer.has(0) && cut.edges.every((edge) => edge.j === this.source)) {
        return ` at the source: all it passes on in layer ${this.number(1)}`;
      }
      if (byLayer.size === 1 && byLayer.has(this.layer - 1)) {
        return ` at the target: all it takes in layer ${this.number(this.layer)}`;
      }
      const shares = [...byLayer].sort(([a], [b]) => a - b);
      const parts = shares.map(([m, sum]) => `${Math.round((100 * sum) / cut.value)} % in layer ${this.number(m + 1)}`);
      return `: ${parts.join(", ")}`;
    }
  }

  Object.assign(attnflow, { FlowGraph });
})((globalThis.attnflow ??= {}));
