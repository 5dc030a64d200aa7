// A view document, unpacked when it is looked at: one layer at a time, one row at a time.
(function (attnflow) {
  "use strict";

  const VERSION = 1;

  function bytes(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const found = new Uint8Array(raw.length);
    for (let k = 0; k < raw.length; k++) found[k] = raw.charCodeAt(k);
    return found;
  }

  const numbers = (text, Kind) => new Kind(bytes(text).buffer); // little-endian, as browsers are

  // One result: rows of values by the number of the layer in its list and the target.
  class Result {
    constructor(record, targets, sources) {
      this.record = record;
      this.name = record.name;
      this.title = record.title;
      this.layers = record.layers;
      this.targets = targets;
      this.sources = sources;
      this.gap = record.gap;
      this.remarks = record.remarks ?? []; // documents of 0.1.0 have none
      this.caveats = record.caveats ?? [];
      this.unit = record.unit ?? "share";
      this.recipe = record.recipe ?? record.title;
      this.verdicts = record.verdicts ?? [];
      this.sentences = record.sentences ?? []; // of each target about images, at the highest layer
      this.paths = record.paths ?? null;
      this.wholeModel = record.whole_model ?? false;
      this.unpacked = new Map();
      this.elsewhereValues = record.elsewhere ? numbers(record.elsewhere, Float32Array) : null;
    }

    layer(k) {
      if (!this.unpacked.has(k)) {
        const packed = this.record.values[k];
        this.unpacked.set(k, {
          kept: packed.kept ?? this.sources,
          values: numbers(packed.values, Int16Array),
          scale: numbers(packed.scale, Float32Array),
          index: packed.index ? numbers(packed.index, Uint16Array) : null,
          rest: packed.rest ? numbers(packed.rest, Float32Array) : null,
          saturated: this.record.saturated ? bytes(this.record.saturated[k]) : null,
        });
      }
      return this.unpacked.get(k);
    }

    get ready() {
      return this.unpacked.size === this.layers.length;
    }

    // Unpack one more layer; a large document is unpacked in steps, so that nothing stands still.
    unpackNext() {
      const next = this.layers.findIndex((_, k) => !this.unpacked.has(k));
      if (next >= 0) this.layer(next);
    }

    row(k, target) {
      const { kept, values, scale, index } = this.layer(k);
      const found = new Float32Array(this.sources);
      const start = target * kept;
      for (let j = 0; j < kept; j++) {
        found[index ? index[start + j] : j] = values[start + j] * scale[target];
      }
      return found;
    }

    // The rows of several targets added up; k is null for the mean of layers.
    sum(k, targets) {
      const total = new Float32Array(this.sources);
      for (const target of targets) {
        const row = k === null ? this.meanRow(target) : this.row(k, target);
        for (let j = 0; j < row.length; j++) total[j] += row[j];
      }
      return total;
    }

    meanRow(target) {
      const mean = new Float32Array(this.sources);
      this.layers.forEach((_, k) => {
        const row = this.row(k, target);
        for (let j = 0; j < row.length; j++) mean[j] += row[j] / this.layers.length;
      });
      return mean;
    }

    // The rows of all layers; null for a layer that is not unpacked yet.
    rows(target) {
      return this.layers.map((_, k) => (this.unpacked.has(k) ? this.row(k, target) : null));
    }

    // What a row sums to, with what the document left out of it; k is null for the mean of layers.
    total(k, target, row) {
      const layers = k === null ? this.layers.map((_, each) => each) : [k];
      const rest = layers.reduce((sum, each) => sum + (this.layer(each).rest?.[target] ?? 0), 0);
      return row.reduce((sum, value) => sum + value, rest / layers.length);
    }

    isSaturated(k, target, source) {
      const bits = this.layer(k).saturated;
      if (!bits) return false;
      const place = target * this.sources + source;
      return Boolean((bits[place >> 3] >> (place & 7)) & 1);
    }

    elsewhere(k, target) {
      return this.elsewhereValues ? this.elsewhereValues[k * this.targets + target] : null;
    }

    // Differences from a baseline may be negative; shares of such a row would say nothing.
    get signed() {
      if (this.hasNegative === undefined) {
        this.hasNegative = this.layer(this.layers.length - 1).values.some((value) => value < 0);
      }
      return this.hasNegative;
    }

    get thinned() {
      return this.record.values[0].kept ?? null;
    }
  }

  function open(record) {
    if (record?.format !== "attnflow-view" || record.version !== VERSION) {
      throw new Error(
        `This page shows views of version ${VERSION}; the data says ` +
          `${String(record?.format)} ${String(record?.version)}.`,
      );
    }
    const targets = record.targets.texts.length;
    const sources = record.sources.texts.length;
    return {
      ...record,
      answer: record.answer ?? null,
      passages: record.passages ?? [],
      images: imagesOf(record),
      heads: record.heads && { ...record.heads, weights: record.heads.weights.map(bytes) },
      results: record.results.map((result) => new Result(result, targets, sources)),
      graph: record.graph && {
        ...record.graph,
        capacities: record.graph.capacities.map((text) => numbers(text, Uint16Array)),
      },
    };
  }

  // The images of a document, each from a source of its own on: one alone, or several among words.
  function imagesOf(record) {
    if (record.image) return [{ ...record.image, name: "image", start: 0 }];
    return record.images ?? [];
  }

  // Token texts as they are shown: spaces and line ends must be seen to be chosen.
  function visible(text) {
    const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
    if (shown === "") return "∅";
    return shown.trim() === "" ? shown.replaceAll(" ", "␣") : shown;
  }

  function format(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 0.0995 ? value.toFixed(3) : size >= 0.0001 ? value.toPrecision(2) : value.toExponential(1);
  }

  Object.assign(attnflow, { open, visible, format });
})((globalThis.attnflow ??= {}));
