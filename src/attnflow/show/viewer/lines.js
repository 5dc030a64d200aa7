// Where lines end: words wrap like text, and because every line is known by number, only those in
// sight need to exist.
(function (attnflow) {
  "use strict";

  const BREAKS_ANYWHERE = /[⺀-鿿豈-﫿가-힣]/; // scripts without spaces

  // Tokens stay with the word they continue: a word begins at a space or after a line end.
  function beginsWord(texts, k) {
    if (k === 0 || /^\s/.test(texts[k]) || /\s$/.test(texts[k - 1])) return true;
    return BREAKS_ANYWHERE.test(texts[k][0] ?? "");
  }

  // Lines as [start, end) of token numbers. `measure` gives the width of a text.
  function breakLines(texts, width, measure) {
    const lines = [];
    let start = 0;
    let used = 0;
    const close = (end) => {
      if (end > start) lines.push([start, end]);
      start = end;
      used = 0;
    };
    let k = 0;
    while (k < texts.length) {
      let end = k + 1;
      while (end < texts.length && !texts[end - 1].includes("\n") && !beginsWord(texts, end)) end++;
      const widths = texts.slice(k, end).map(measure);
      const word = widths.reduce((sum, one) => sum + one, 0);
      if (used > 0 && used + word > width) close(k);
      if (word <= width) {
        used += word;
      } else {
        for (let j = 0; j < widths.length; j++) {
          if (used > 0 && used + widths[j] > width) close(k + j);
          used += widths[j];
        }
      }
      k = end;
      if (texts[k - 1].includes("\n")) close(k);
    }
    close(texts.length);
    return lines;
  }

  Object.assign(attnflow, { breakLines });
})((globalThis.attnflow ??= {}));
