// The viewer: the answer first, what it rests on, then what it draws on. `attnflow.show(element, record)` draws a
// view document; the same record and state always give the same page.
(function (attnflow) {
  "use strict";

  const { make, open, visible, format, wordsOf, namesOf, measure, quoted, listing, ColourScale } = attnflow;
  const { TextPanel, AnswerPanel, LayerMap, Ranking, FlowGraph, HeadGrid, VerdictPanel, PathPanel, Controls } = attnflow;
  const { Picture, Overlay, SmallMaps, contrast, photosOf } = attnflow;
  const LEAST = -0.6; // what is less than the baseline is shown, but does not outshine what is more
  const SPOKEN_AFTER = 350; // ms: a screen reader hears where one stops, not every step on the way
  const FAINT = 0.1; // of a row: beside images, what a word needs for the deepest shade
  const FLAT = 0.1; // by how much a document's share must be above the mean of all to stand out
  const NO_NEWS = 0.005; // of a row: what rounds to nothing

  class Viewer {
    constructor(root, record, { state = "", onState = null } = {}) {
      this.view = open(record);
      this.onState = onState;
      this.completion = this.view.answer?.kind === "completion";
      this.state = {
        result: 0,
        other: null,
        layer: this.view.results[0].layers.length - 1,
        mean: false,
        scale: "share",
        top: null,
        least: 0,
        hideCommon: false,
        marks: false, // whether line ends and the signs of a chat are shown
        unit: "word",
        rows: [this.view.start],
        hovered: null,
        source: null,
        details: false,
      };
      this.prepareNames();
      if (this.completion && this.passages.length) this.state.unit = "sentence";
      this.build(root);
      if (this.completion) this.state.rows = this.passages.length ? this.answer.statements[0] : this.firstRows();
      this.restore(state);
      this.renderSoon(true);
    }

    prepareNames() {
      const { items, sources } = this.view;
      this.texts = sources.texts.map((text) => text);
      this.common = new Array(this.texts.length).fill(false);
      this.framing = new Array(this.texts.length).fill(false); // signs of form that no person wrote
      for (const item of items) {
        if (item.source === null) continue;
        this.texts[item.source] = item.text;
        this.common[item.source] = item.common;
        this.framing[item.source] = this.completion && item.framing;
      }
      const single = this.texts.map((_, k) => [k]);
      this.names = namesOf(single, this.texts, sources.positions);
      this.photos = photosOf(this.view.images);
      this.imageSources = this.imagesBesideWords();
      this.words = this.view.image ? single : this.imageSources.length ? this.imagesAndWords() : wordsOf(this.texts);
      this.wordNames = namesOf(this.words, this.texts, sources.positions);
      this.imageSources.forEach(({ name }, k) => (this.wordNames[k] = this.imageSources.length > 1 ? name : "the image"));
      const parts = this.view.passages.filter((passage) => passage.kind !== "sentence");
      this.passages = parts.length > 1 ? parts : [];
    }

    // Images whose patches stand among words: each counts as one source, beside the words.
    imagesBesideWords() {
      const { image, images } = this.view;
      this.inImage = new Array(this.texts.length).fill(false);
      if (image) return [];
      return images.map(({ name, start, rows, columns, prefix }) => {
        const columnsOfIt = Array.from({ length: prefix + rows * columns }, (_, k) => start + k);
        for (const j of columnsOfIt) this.inImage[j] = true;
        return { name, columns: columnsOfIt };
      });
    }

    imagesAndWords() {
      const words = this.texts.map((_, j) => j).filter((j) => !this.inImage[j]);
      const grouped = wordsOf(words.map((j) => this.texts[j])).map((word) => word.map((k) => words[k]));
      return [...this.imageSources.map(({ columns }) => columns), ...grouped];
    }

    // -- building -------------------------------------------------------------------------------

    build(root) {
      const { view } = this;
      this.controls = new Controls(view.results, this.state, (change) => this.change(change));
      this.map = new LayerMap({ onPick: (layer) => this.change({ layer, mean: false }) });
      const picks = {
        onPassage: (passage) => this.text.revealSource(passage.strongest),
        onWord: (word) => this.revealSource(word.source),
        onCut: (source) => this.chooseSource(source),
      };
      this.ranking = new Ranking(picks);
      this.beside = new Ranking(picks);
      this.spoken = make("p", { class: "af-spoken", "aria-live": "polite" });
      this.caveats = make("div", { class: "af-caveats", role: "note" });
      this.notes = make("ul", { class: "af-notes" });
      this.root = make(
        "div",
        { class: "af-viewer" },
        this.head(),
        this.answerBlock(),
        this.caveats,
        (this.verdict = new VerdictPanel()).root,
        this.spoken,
        (this.path = new PathPanel({ onStep: (step) => this.text.revealSource(step.columns[0]) })).root,
        make("div", { class: "af-panels" }, this.sidePanel(), this.textPanel()),
        this.detailsPanel(),
      );
      root.replaceChildren(this.root);
      this.root.addEventListener("keydown", (event) => this.layerKey(event));
    }

    head() {
      const { title, model } = this.view;
      const kicker = this.view.image ? "Image" : this.imageSources.length ? "Question about an image" : this.completion ? "Prompt" : "Text";
      return make(
        "header",
        { class: "af-head" },
        make("p", { class: "af-quiet" }, [model && `${model}`, kicker].filter(Boolean).join(" · ")),
        make("h2", { class: title.length > 120 ? "af-long" : null }, title),
      );
    }

    answerBlock() {
      const { view } = this;
      if (this.completion) {
        this.answer = new AnswerPanel(this.targetTexts(), view.answer.statements, {
          onPick: (rows) => this.pickRows(rows),
          onHover: (rows) => this.hover(rows),
          onUnit: (unit) => this.changeUnit(unit),
          mapsOf: this.imageSources.length ? () => new SmallMaps(view.images, this.photos) : null,
        });
        return this.answer.root;
      }
      if (!view.prediction) return make("p", { class: "af-answer af-hint" }, `Choose a ${view.image ? "patch of the image" : "word of the text"} to see what it draws on.`);
      const { label, probability } = view.prediction;
      return make(
        "p",
        { class: "af-answer af-says" },
        "The model says ",
        make("strong", {}, label),
        make("span", { class: "af-chance" }, `probability ${(100 * probability).toFixed(1)} %`),
      );
    }

    targetTexts() {
      const texts = this.view.targets.texts.map((text) => text);
      for (const item of this.view.items) if (item.target !== null) texts[item.target] = item.text;
      return texts;
    }

    firstRows() {
      const words = this.answer.words;
      const content = words.find((word) => word.some((token) => !this.commonTarget(token)));
      return content ?? words[0];
    }

    commonTarget(token) {
      const item = this.view.items.find((one) => one.target === token);
      return item ? item.common || item.text.trim() === "" : false;
    }

    textPanel() {
      const items = this.completion ? this.view.items.filter((item) => item.source !== null) : this.view.items;
      const place = new Map(items.map((item, k) => [item.source, k]));
      const headings = new Map(this.passages.map(({ name, columns }) => [place.get(columns[0]) ?? -1, name]));
      headings.delete(-1);
      this.text = new TextPanel(items, {
        label: this.completion ? "The prompt, its sources shaded." : "Tokens. Arrow keys choose the target, plus and minus the layer.",
        onHover: (item) => this.hover(item?.target === null || !item ? null : [item.target]),
        onPick: (item) => item && item.target !== null && this.pickRows([item.target]),
        onMove: (event) => this.key(event),
        headings,
      });
      const { images } = this.view;
      const panel = make("section", { class: "af-panel af-reading", "aria-label": images.length ? "Image" : "Text" });
      const targetOf = (source) => (this.completion ? null : this.targetOf(source)); // no patch was written
      const callbacks = { targetOf, onPatch: (source) => this.pickRows([targetOf(source)]) };
      this.pictures = images.map((image, k) => new Picture(image, this.photos[k], callbacks));
      this.overlay = new Overlay({ onChange: () => this.renderSoon() });
      if (images.length) panel.append(make("div", { class: images.length > 1 ? "af-pictures af-several" : "af-pictures" }, ...this.pictures.map((picture, k) => this.framed(picture, images[k]))), this.overlay.root);
      this.legend = make("p", { class: "af-legend" });
      this.scale = new ColourScale();
      panel.append(this.text.root, this.legend, this.scale.root);
      return panel;
    }

    framed(picture, image) {
      if (this.imageSources.length < 2) return picture.root;
      return make("figure", { class: "af-figure" }, picture.root, make("figcaption", { class: "af-quiet" }, image.name));
    }

    sidePanel() {
      this.heading = make("h3", {});
      this.besideHeading = make("h3", {});
      this.besideBlock = make("div", { hidden: true }, this.besideHeading, this.beside.root);
      return make(
        "section",
        { class: "af-panel af-side", "aria-label": "Sources" },
        make("div", { class: "af-columns" }, make("div", {}, this.heading, this.ranking.root), this.besideBlock),
      );
    }

    detailsPanel() {
      this.summary = make("summary", {}, "Details");
      const parts = [make("div", { class: "af-detail" }, make("h3", {}, "Sources × layers"), this.map.root, this.map.scale.root, this.map.said)];
      if (this.view.heads) parts.push(make("div", { class: "af-detail" }, (this.headGrid = new HeadGrid(this.namedHeads())).root));
      if (this.view.graph) {
        this.graph = new FlowGraph(this.view.graph, this.names, { onSource: (source) => this.chooseSource(source) });
        parts.push(make("div", { class: "af-detail af-wide-detail" }, make("h3", {}, "Flow graph"), this.graph.root));
      }
      this.details = make(
        "details",
        { class: "af-details" },
        this.summary,
        this.controls.root,
        this.notes,
        make("div", { class: "af-detail-grid" }, ...parts),
      );
      this.details.addEventListener("toggle", () => {
        if (this.state.details !== this.details.open) this.change({ details: this.details.open });
      });
      return this.details;
    }

    // Documents of before have square heads, whose rows and columns are the sources.
    namedHeads() {
      const { heads } = this.view;
      return heads.rows ? heads : { ...heads, rows: this.names, columns: this.names };
    }

    // -- choosing -------------------------------------------------------------------------------

    change(change) {
      const before = this.result.layers[this.state.layer];
      Object.assign(this.state, change);
      if ("result" in change) {
        const same = this.result.layers.indexOf(before);
        this.state.layer = same < 0 ? this.result.layers.length - 1 : same;
      }
      this.renderSoon("rows" in change);
      this.onState?.(this.link());
    }

    hover(rows) {
      if (String(rows) === String(this.state.hovered)) return;
      this.state.hovered = rows;
      this.renderSoon();
    }

    revealSource(source) {
      const at = this.imageSources.findIndex(({ columns }) => columns.includes(source));
      if (at >= 0) this.pictures[at].root.scrollIntoView({ block: "nearest", behavior: "smooth" });
      else this.text.revealSource(source);
    }

    pickRows(rows) {
      if (!rows || rows.some((row) => row === null || row === undefined)) return;
      this.change({ rows, hovered: null });
    }

    changeUnit(unit) {
      this.answer.unit = unit;
      this.change({ unit, rows: this.answer.unitRows(this.state.rows[0]), hovered: null });
    }

    chooseSource(source) {
      this.details.open = true;
      this.change({ source: this.state.source === source ? null : source, details: true, hovered: null });
      this.graph?.root.scrollIntoView({ block: "nearest", behavior: "smooth" });
    }

    key(event) {
      if (this.completion) return;
      const count = this.view.targets.texts.length;
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -count, End: count, PageDown: 20, PageUp: -20 };
      if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const unseen = (k) => this.text.isUnseen(k) && k > 0 && k < count - 1;
      let target = Math.max(0, Math.min(count - 1, this.state.rows[0] + steps[event.key]));
      while (unseen(target)) target += Math.sign(steps[event.key]);
      this.change({ rows: [target], hovered: null });
      this.text.reveal(target);
    }

    layerKey(event) {
      const step = { "+": 1, "=": 1, "-": -1 }[event.key];
      if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const layer = Math.max(0, Math.min(this.result.layers.length - 1, this.state.layer + step));
      this.change({ layer, mean: false });
    }

    targetOf(source) {
      const position = this.view.sources.positions[source];
      const at = this.view.targets.positions.indexOf(position);
      return at < 0 ? null : at;
    }

    get result() {
      return this.view.results[this.state.result];
    }

    get rows() {
      return this.state.hovered ?? this.state.rows;
    }

    // What a link must hold to show the same again.
    link() {
      const { result, layer, mean, rows, unit, other, details, source, marks } = this.state;
      const parts = { r: result, l: mean ? "mean" : this.view.results[result].layers[layer], t: `${rows[0]}-${rows.at(-1)}`, u: unit };
      if (other !== null) parts.o = other;
      if (source !== null) parts.s = source;
      if (details) parts.d = 1;
      if (marks) parts.m = 1;
      return new URLSearchParams(parts).toString();
    }

    restore(text) {
      const parts = new URLSearchParams(text);
      const number = (key, most) => {
        const value = Number.parseInt(parts.get(key) ?? "", 10);
        return value >= 0 && value < most ? value : null;
      };
      const { view, state } = this;
      state.result = number("r", view.results.length) ?? state.result;
      const layer = this.result.layers.indexOf(Number(parts.get("l")));
      state.layer = layer < 0 ? this.result.layers.length - 1 : layer;
      state.mean = parts.get("l") === "mean";
      if (["word", "sentence", "answer"].includes(parts.get("u"))) state.unit = parts.get("u");
      const [first, last] = (parts.get("t") ?? "").split("-").map(Number);
      const targets = view.targets.texts.length;
      if (first >= 0 && last >= first && last < targets) state.rows = Array.from({ length: last - first + 1 }, (_, k) => first + k);
      state.other = number("o", view.results.length);
      state.source = number("s", view.sources.texts.length);
      state.details = parts.get("d") === "1";
      state.marks = parts.get("m") === "1";
      this.details.open = state.details;
    }

    // The result in short: what is held against the run after it.
    inShort() {
      const reckoning = this.reckon();
      const { words, total, unit, peak } = reckoning;
      const passages = this.rankedPassages(reckoning);
      const lead = this.sentence(reckoning, passages).text;
      const answer = this.completion ? this.answer.texts.join("").trim() : (this.view.prediction?.label ?? "");
      const named = passages.map(({ name, share }) => ({ name, text: measure(share, 1, "share") }));
      const sources = words.slice(0, 12).map((word) => ({ name: word.name, text: this.number(word.value, total, unit, peak) }));
      return { title: this.view.title, answer, lead, sources: [...named, ...sources] };
    }

    // -- reckoning ------------------------------------------------------------------------------

    // What the rows draw on, by source and by word, with what a share is a share of.
    reckon(result = this.result) {
      const { layer, mean } = this.state;
      const number = this.result.layers[layer];
      const same = result.layers.indexOf(number);
      const k = mean ? null : result === this.result ? layer : same < 0 ? result.layers.length - 1 : same;
      const row = result.sum(k, this.rows);
      const total = result.signed
        ? row.reduce((sum, value) => sum + Math.abs(value), 0)
        : this.rows.reduce((sum, target) => sum + result.total(k, target, k === null ? result.meanRow(target) : result.row(k, target)), 0);
      const saturated = (j) => k !== null && this.rows.length === 1 && result.isSaturated(k, this.rows[0], j);
      const words = this.rankedWords(row, saturated, result.signed);
      const strongest = words.length ? Math.abs(words[0].value) : 0;
      for (const word of words) word.share = strongest > 0 ? word.value / strongest : 0;
      const peak = this.peak(row, result.signed);
      return { result, k, row, total, words, saturated, peak, unit: this.unitOf(result) };
    }

    // The strongest value that a person wrote a word for: it sets the scale of the shading.
    peak(row, signed) {
      let [most, size] = [0, 0];
      row.forEach((value, j) => {
        if (this.framing[j] || this.inImage[j]) return; // patches have a scale of their own
        most = Math.max(most, value);
        size = Math.max(size, Math.abs(value));
      });
      // Beside an image a word is not deep because it is the strongest of weak ones.
      const least = this.imageSources.length ? FAINT * row.reduce((sum, value) => sum + Math.abs(value), 0) : 0;
      return Math.max(least, signed && most === 0 ? size : most);
    }

    unitOf(result) {
      return this.state.scale === "share" ? result.unit : this.state.scale;
    }

    rankedWords(row, saturated, signed) {
      const { hideCommon, least, top } = this.state;
      const words = [];
      this.words.forEach((columns, k) => {
        if (columns.every((j) => this.framing[j] || (hideCommon && this.common[j]))) return;
        const value = columns.reduce((sum, j) => sum + row[j], 0);
        const source = columns.reduce((best, j) => (Math.abs(row[j]) > Math.abs(row[best]) ? j : best), columns[0]);
        if (value !== 0) words.push({ name: this.wordNames[k], value, source, columns, saturated: saturated(source) });
      });
      words.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
      if (signed) words.sort((a, b) => Number(b.value > 0) - Number(a.value > 0) || Math.abs(b.value) - Math.abs(a.value));
      const strongest = words.length ? Math.abs(words[0].value) : 0;
      const shown = words.filter((word) => Math.abs(word.value) >= least * strongest);
      return top === null ? shown : shown.slice(0, top);
    }

    // Documents and messages, strongest first; shares are of what speaks for the answer in all of
    // them. A passage has what its words say together, for and against (as in rank_passages).
    rankedPassages({ row }) {
      const positive = (j) => Math.max(0, row[j]);
      const sum = ([first, end]) => {
        let total = 0;
        for (let j = first; j < end; j++) total += row[j];
        return total;
      };
      const sums = this.passages.map((passage) => Math.max(0, sum(passage.columns)));
      const total = sums.reduce((a, b) => a + b, 0);
      if (total <= 0) return [];
      const peak = this.peak(row, false) || 1;
      return this.passages
        .map((passage, k) => {
          const spans = passage.sentences.length ? passage.sentences : [passage.columns];
          const best = spans.reduce((a, b, n) => (sum(b) > sum(spans[a]) ? n : a), 0);
          const [first, end] = spans[best];
          const pieces = Array.from({ length: end - first }, (_, n) => ({ text: n ? this.texts[first + n] : this.texts[first].trimStart(), share: positive(first + n) / peak }));
          const strongest = pieces.reduce((a, piece, n) => (piece.share > pieces[a].share ? n : a), 0) + first;
          return { name: passage.name, share: sums[k] / total, place: passage.places[best] ?? passage.name, pieces, strongest };
        })
        .sort((a, b) => b.share - a.share);
    }

    // Those whose share is above what all would have if they were alike; none where they nearly are
    // (as in Statement.shares).
    standingOut(passages) {
      const mean = 1 / passages.length;
      if (passages.length > 1 && passages[0].share < mean + FLAT) return [];
      return passages.filter(({ share }) => share >= mean);
    }

    // -- showing --------------------------------------------------------------------------------

    renderSoon(moved = false) {
      this.moved = this.moved || moved;
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = null;
        this.render();
      });
    }

    // Layers are unpacked one at a time, each in a moment of its own.
    unpackSoon() {
      if (this.result.ready || this.unpacking) return;
      this.unpacking = setTimeout(() => {
        this.unpacking = null;
        this.result.unpackNext();
        if (this.result.ready) this.renderSoon();
        else this.unpackSoon();
      }, 0);
    }

    render() {
      this.unpackSoon();
      if (this.state.mean && !this.result.ready) return; // it comes when all layers are there
      const reckoning = this.reckon();
      const { row, words, total, saturated, peak, unit, result } = reckoning;
      const passages = this.rankedPassages(reckoning);
      const shown = new Set(words.flatMap((word) => word.columns));
      const number = (j) => this.number(row[j], total, unit, peak);
      const share = (j) => (peak > 0 && !this.framing[j] ? Math.max(LEAST, row[j] / peak) : 0);
      const paint = { share, number, hidden: (j) => !shown.has(j) && row[j] !== 0 && !this.framing[j], saturated, rows: this.rows };
      this.controls.update();
      this.answer?.update(this.rows, this.state.unit);
      this.text.showMarks(this.state.marks);
      this.text.update(paint);
      this.updatePictures(row, paint);
      const comparing = this.state.other !== null && this.state.other !== this.state.result;
      this.root.classList.toggle("af-comparing", comparing);
      const common = { cuttable: Boolean(this.graph) && result.unit === "flow" && !comparing, source: this.state.source };
      const verdict = this.verdictInSight(result);
      const needsNone = verdict?.kind === "none" && verdict.part === "document"; // then no share is a source
      const sources = needsNone ? [] : this.standingOut(passages);
      this.ranking.update({ passages: sources, words: this.measured(words, total, unit, peak), total, unit, ...common });
      const bare = needsNone ? "No document is needed" : passages.length && !sources.length ? `No ${this.passages[0].kind} stands out` : null;
      this.heading.textContent = bare ?? (this.passages.length ? "What it draws on" : `What ${quoted(this.subject())} draws on`);
      this.updateBeside();
      this.updateDetails(reckoning);
      this.legend.textContent = this.legendText(result, unit);
      const end = (value) => this.number(value, total, unit, peak);
      this.scale.update(result.signed ? `${end(LEAST * peak)} or less` : end(0), end(peak), result.signed);
      this.warn();
      this.verdict.update(verdict);
      this.spoken.hidden = needsNone;
      this.path.update(result.paths?.[this.statementInSight()] ?? null);
      this.say(reckoning, passages);
      if (this.moved && this.state.hovered === null) this.reveal(passages, words);
    }

    // Of the statement in sight, where each has one; else of the whole answer, or the prediction.
    verdictInSight({ verdicts }) {
      if (!this.completion) return (this.rows[0] === this.view.start && verdicts[0]) || null;
      return verdicts[verdicts.length === this.answer.statements.length ? this.statementInSight() : 0] ?? null;
    }

    statementInSight(rows = this.rows) {
      return this.answer ? this.answer.statements.findIndex((statement) => statement.includes(rows[0])) : -1;
    }

    updatePictures(row, { hidden, rows }) {
      const { images } = this.view;
      if (!images.length) return;
      const { share: patch, ends, signed } = contrast(images, (j) => (hidden(j) ? 0 : row[j]));
      for (const picture of this.pictures) picture.update({ patch, rows, cover: this.overlay.cover });
      this.overlay.update(ends, signed);
      this.updateSmallMaps();
    }

    // Each word's own map, drawn again when the method or the layer is another.
    updateSmallMaps() {
      const { result, layer, mean } = this.state;
      const key = `${result} ${mean ? "mean" : layer}`;
      if (!this.answer?.maps.length || key === this.mapped) return;
      this.mapped = key;
      this.answer.maps.forEach((maps, k) => {
        const row = this.result.sum(mean ? null : layer, this.answer.words[k]);
        maps.update(contrast(this.view.images, (j) => row[j]).share);
      });
    }

    measured(words, total, unit, peak) {
      return words.map((word) => ({ ...word, text: this.number(word.value, total, unit, peak) }));
    }

    number(value, total, unit, peak) {
      if (unit === "none") return format(value);
      if (unit === "max") return format(peak > 0 ? value / peak : 0);
      return measure(value, total, unit);
    }

    reveal(passages, words) {
      this.moved = false;
      const source = passages[0]?.strongest ?? words[0]?.source;
      if (source !== undefined && this.completion && !this.inImage[source]) this.text.revealSource(source);
    }

    updateBeside() {
      const { other } = this.state;
      this.besideBlock.hidden = other === null || other === this.state.result;
      if (this.besideBlock.hidden) return;
      const reckoning = this.reckon(this.view.results[other]);
      const { words, total, unit, peak, result } = reckoning;
      this.heading.textContent = this.result.title;
      this.besideHeading.textContent = result.title;
      this.beside.update({ passages: this.standingOut(this.rankedPassages(reckoning)), words: this.measured(words, total, unit, peak), total, unit, cuttable: false, source: null });
    }

    updateDetails({ words }) {
      const { layer, mean, top, least, hideCommon } = this.state;
      const where = mean ? "mean of layers" : attnflow.layerName(this.result, layer);
      this.summary.textContent = `Details: ${this.result.title}, ${where}`;
      this.note(words);
      if (!this.details.open) return; // drawn when it is looked at
      const listed = words.flatMap((word) => word.columns).sort((a, b) => a - b);
      const all = [...this.names.keys()].filter((j) => this.state.marks || !this.framing[j]);
      const rows = top === null && least === 0 && !hideCommon ? all : listed;
      const grid = this.result.layers.map((_, k) => (this.result.unpacked.has(k) ? this.result.sum(k, this.rows) : null));
      let strongest = 0;
      for (const one of grid) if (one) for (const j of rows) strongest = Math.max(strongest, one[j]);
      this.map.update({ rows, grid, least: LEAST, layers: this.result.layers, at: mean ? null : layer, names: this.names, strongest });
      if (this.state.hovered === null) this.updateGraph();
    }

    updateGraph() {
      if (!this.graph) return;
      const at = this.view.sources.positions.indexOf(this.view.targets.positions[this.state.rows[0]]);
      const number = this.result.layers[this.state.mean ? this.result.layers.length - 1 : this.state.layer];
      const height = this.view.graph.layers.indexOf(number) + 1;
      if (at >= 0 && height > 0) this.graph.update(height, at, this.state.source);
    }

    targetName() {
      if (this.completion) return this.answer.texts.slice(this.rows[0], this.rows.at(-1) + 1).join("").replace(/\s+/g, " ").trim();
      const item = this.view.items.find((one) => one.target === this.rows[0]);
      return visible(item ? item.text : this.view.targets.texts[this.rows[0]]).trim();
    }

    // What the sentence is about: the prediction where it was read, else the words.
    subject() {
      const predicting = !this.completion && this.view.prediction && this.rows[0] === this.view.start;
      return predicting ? this.view.prediction.label : this.targetName();
    }

    legendText(result, unit) {
      const what = {
        share: "stronger: a larger share of all that it draws on",
        flow: "stronger: a larger flow, the most that could come through",
        difference: "blue speaks for it, orange against it",
        none: "stronger: a larger value, as the method computes it",
        max: "stronger: nearer to the strongest source, which is 1",
      }[unit];
      const dots = result.record.saturated ? "; dotted: saturated, the same for any target" : "";
      return `Shading, ${what}${dots}.`;
    }

    // Saturation and collapse are said first: what is the same for any target explains none.
    warn() {
      const top = this.state.layer === this.result.layers.length - 1 && !this.state.mean;
      const texts = top ? this.result.caveats : [];
      if (texts.join() === this.warned) return;
      this.warned = texts.join();
      this.caveats.hidden = texts.length === 0;
      this.caveats.replaceChildren(...texts.map((text) => make("p", {}, text)));
    }

    note(words) {
      const { layer, mean } = this.state;
      const count = words.filter((word) => word.saturated).length;
      const remarks = this.result.remarks.filter((text) => !text.includes("saturated") && !text.includes("collapsed"));
      const notes = [`Recipe: ${this.result.recipe}`, ...remarks.map(sentence)];
      if (count) notes.push(`${count} of ${words.length} words (dotted) are saturated: they are the same for any target.`);
      const elsewhere = mean || this.rows.length > 1 ? null : this.result.elsewhere(layer, this.rows[0]);
      if (elsewhere !== null && Math.abs(elsewhere) >= 0.0005) notes.push(`${format(elsewhere)} falls on tokens that are not among the sources.`);
      if (this.result.gap !== null) notes.push(certificate(this.result.gap));
      if (this.result.thinned) notes.push(`The ${this.result.thinned} strongest sources of each target are kept here.`);
      if (notes.join() === this.noted) return;
      this.noted = notes.join();
      this.notes.replaceChildren(...notes.map((text) => make("li", {}, text)));
    }

    say(reckoning, passages) {
      const lead = this.sentence(reckoning, passages);
      if (lead.text === this.said) return;
      this.said = lead.text;
      this.spoken.replaceChildren(...lead.parts);
      clearTimeout(this.speaking);
      this.speaking = setTimeout(() => this.spoken.setAttribute("data-said", lead.text), SPOKEN_AFTER);
    }

    // “Russia” draws on “Putin” (71 %): the sentence above the picture.
    sentence({ words, total, unit, peak }, passages) {
      const strong = (text) => make("strong", {}, text);
      const atTop = !this.state.mean && this.state.layer === this.result.layers.length - 1;
      const known = atTop && this.rows.length === 1 ? this.result.sentences[this.rows[0]] : null;
      if (known) return { parts: [known], text: known };
      const name = this.subject();
      const raising = words.filter((word) => word.value > NO_NEWS * total && /[\p{L}\p{N}]/u.test(word.name)).slice(0, 3);
      const against = words.filter((word) => word.value < 0).slice(0, 2);
      const told = (list) => listing(list.map((word) => `${quoted(word.name)} (${this.number(word.value, total, unit, peak)})`));
      const parts = [strong(quoted(shortened(name)))];
      if (passages.length) {
        const [first, next] = this.standingOut(passages);
        if (first) {
          parts.push(" draws on ", strong(first.place), ` (${measure(first.share, 1, "share")})`);
          parts.push(next ? `, then ${next.name} (${measure(next.share, 1, "share")}).` : ".");
        } else {
          parts.push(` draws on all alike: no ${this.passages[0].kind} stands out.`);
        }
        if (raising.length) parts.push(` Strongest words: ${told(raising)}.`);
      } else if (raising.length) {
        parts.push(" draws on ", strong(told(raising.slice(0, 1))));
        if (raising.length > 1) parts.push(`, then ${told(raising.slice(1))}`);
        parts.push(unit === "difference" && against.length ? `, and is held back by ${told(against)}.` : ".");
      } else {
        parts.push(" draws on nothing shown.");
      }
      return { parts, text: parts.map((part) => part.textContent ?? part).join("") };
    }
  }

  function shortened(name) {
    return name.length > 90 ? `${name.slice(0, 88)}…` : name;
  }

  function sentence(remark) {
    const text = remark.charAt(0).toUpperCase() + remark.slice(1);
    return /[.!?]$/.test(text) ? text : `${text}.`;
  }

  function certificate(gap) {
    if (gap === 0) return "Certified: the lower and upper bounds of every value are equal.";
    return `Certified: every value is within ${gap.toExponential(0)} of the true one.`;
  }

  function show(root, record, options) {
    return new Viewer(root, record, options);
  }

  Object.assign(attnflow, { show });
})((globalThis.attnflow ??= {}));
