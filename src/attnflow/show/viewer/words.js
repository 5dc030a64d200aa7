// Tokens as people read them: words, repeated ones told apart, and numbers with their unit.
(function (attnflow) {
  "use strict";

  const { visible } = attnflow;
  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const JOINS = /^[\p{L}\p{N}'’_-]/u;
  const ENDS = /[\p{L}\p{N}'’_-]$/u;

  // Numbers of tokens that make up each word; `texts` have the space before them.
  function wordsOf(texts, first = 0) {
    const words = [];
    texts.forEach((text, k) => {
      const before = texts[k - 1];
      const space = k > 0 && before !== "" && /^[^\S\n]+$/.test(before); // a space alone belongs to what follows
      const joined = k > 0 && !text.startsWith(" ") && (space || (JOINS.test(text) && ENDS.test(before)));
      if (joined) words.at(-1).push(first + k);
      else words.push([first + k]);
    });
    return words;
  }

  // Names of words; where a word occurs twice it carries the position of its first token.
  function namesOf(words, texts, positions) {
    const plain = words.map((word) => word.map((k) => texts[k]).join("")).map((text) => visible(text.trim() || text).trim());
    const count = new Map();
    for (const name of plain) count.set(name, (count.get(name) ?? 0) + 1);
    return plain.map((name, k) => {
      if (count.get(name) === 1 || positions === null) return name;
      return name + [...String(positions[words[k][0]])].map((digit) => SUPERSCRIPTS[digit]).join("");
    });
  }

  // A number with its unit: a share of the row, a signed difference, or a flow.
  function measure(value, total, unit) {
    if (unit === "difference") return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
    if (unit === "flow") return `flow ${value.toFixed(2)}`;
    const percent = total > 0 ? (100 * value) / total : 0;
    return percent > 0 && percent < 0.95 ? "< 1 %" : `${Math.round(percent)} %`;
  }

  const quoted = (text) => `“${text}”`;

  function listing(parts) {
    return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
  }

  Object.assign(attnflow, { wordsOf, namesOf, measure, quoted, listing });
})((globalThis.attnflow ??= {}));
