// Renders Markdown as elements: paragraphs, headings, lists, quotes, tables, code, formulas, images, links. Text is only
// ever set as text nodes, links have web URLs only, and images are in the text itself, so that no model output can become
// markup or script, or make the browser ask another host. Raw HTML is text.

import { copy, element, icon } from "./dom.js";
import { formula, highlighted } from "./formatted.js";
import { isPicture, picture } from "./content.js";

const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))(?!.*`)/s;
const HEADING = /^ {0,3}(#{1,6})\s/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/; // of a line without white space around it
const FORMULA = /^\s*(\$\$|\\\[)(.*)$/;
const ENDS = { "$$": "$$", "\\[": "\\]" };
const DEEPEST = 16; // of lists and quotes in one another; what is deeper is text
const FORMULA_LINES = 100;
// The lengths are limited so that marks without an end take time in proportion to the text, not to its square.
const SPANS = new RegExp(
  [
    "(?<code>(?<!`)(`+)(?!`)[^]*?[^`]\\2(?!`))",
    "(?<formula>\\$\\$[^$]+\\$\\$|\\$(?=[^\\s$])(?:[^$\\\\\\n]|\\\\[^])*?(?<=\\S)\\$(?![\\d$])|\\\\\\((?:[^\\\\]|\\\\[^)]){1,1000}\\\\\\))",
    "(?<image>!\\[[^\\[\\]]*\\]\\([^()\\s]*\\))",
    "(?<escape>\\\\[\\\\`*_{}\\[\\]()#+.!|~>$-])",
    "(?<link>\\[(?:[^\\[\\]\\\\]|\\\\.)*\\]\\([^()\\s]*(?:\\([^()\\s]*\\)[^()\\s]*)*\\))",
    "(?<bare>https?:\\/\\/[^\\s<>\"'`]*[^\\s<>\"'`.,;:!?)\\]*_])",
    "(?<strong>\\*\\*(?=\\S)[^]{0,2000}?\\S\\*\\*(?!\\*)|\\b__(?=\\S)[^]{0,2000}?\\S__\\b)",
    "(?<em>\\*(?=[^\\s*])[^*]*?[^\\s*]\\*|\\b_(?=\\S)[^_]*?\\S_\\b)",
    "(?<strike>~~(?=\\S)[^]{0,2000}?\\S~~)",
  ].join("|"),
  "g",
);

// Updates `body` to `text`. Unchanged blocks keep their elements, and with them the user's selection.
export function show(body, text) {
  const blocks = split(text.replaceAll("\r\n", "\n").split("\n"));
  const before = body.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < before.length && blocks[same].source === before[same].source) {
    blocks[same].node = before[same].node;
    same += 1;
  }
  for (const gone of before.slice(same)) gone.node.remove();
  for (const fresh of blocks.slice(same)) {
    fresh.node = fresh.build();
    body.append(fresh.node);
  }
  body.shownBlocks = blocks;
}

function rendered(lines, depth) {
  return split(lines, depth).map((block) => block.build());
}

function split(lines, depth = 0) {
  const blocks = [];
  const add = (from, to, build) => blocks.push({ source: lines.slice(from, to).join("\n"), build });
  let at = 0;
  while (at < lines.length) {
    const from = at;
    const line = lines[at];
    let match;
    if (!line.trim()) {
      at += 1;
    } else if ((match = FENCE.exec(line))) {
      const [whole, mark] = match;
      const [language] = line.slice(whole.length).trim().split(/\s/, 1);
      const isEnd = (text) => text.trim().startsWith(mark) && !text.trim().replaceAll(mark[0], "");
      at += 1;
      while (at < lines.length && !isEnd(lines[at])) at += 1;
      const inside = lines.slice(from + 1, at).join("\n");
      at += 1;
      add(from, at, () => code(inside, language));
    } else if ((match = FORMULA.exec(line)) && (at = endOfFormula(lines, from, match)) > from) {
      const whole = lines.slice(from, at).join("\n").trim();
      add(from, at, () => formula(whole.slice(2, -2).trim(), true));
    } else if ((match = HEADING.exec(line))) {
      const [whole, marks] = match;
      const words = withoutMarks(line.slice(whole.length).trim());
      at += 1;
      add(from, at, () => element(`h${Math.min(6, marks.length + 2)}`, {}, ...spans(words)));
    } else if (RULE.test(line)) {
      at += 1;
      add(from, at, () => element("hr"));
    } else if (depth < DEEPEST && QUOTE.test(line)) {
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      const inside = lines.slice(from, at).map((quoted) => QUOTE.exec(quoted)[1]);
      add(from, at, () => element("blockquote", {}, ...rendered(inside, depth + 1)));
    } else if (depth < DEEPEST && ITEM.test(line)) {
      at = endOfList(lines, at);
      const inside = lines.slice(from, at);
      add(from, at, () => list(inside, depth));
    } else if (line.includes("|") && TABLE_RULE.test((lines[at + 1] ?? "").trim()) && lines[at + 1].includes("-")) {
      at += 2;
      while (at < lines.length && lines[at].includes("|")) at += 1;
      const rows = lines.slice(from, at);
      add(from, at, () => table(rows));
    } else {
      while (at < lines.length && lines[at].trim() && (at === from || !begins(lines[at]))) at += 1;
      const inside = lines.slice(from, at).join("\n");
      add(from, at, () => element("p", {}, ...spans(inside)));
    }
  }
  return blocks;
}

// Returns a heading without the marks that may close it.
function withoutMarks(words) {
  let end = words.length;
  while (words[end - 1] === "#") end -= 1;
  return end === 0 || /\s/.test(words[end - 1]) ? words.slice(0, end).trimEnd() : words;
}

// Returns the line after a formula that begins at a line and ends at the end of one, or that line if it has no end.
function endOfFormula(lines, at, [, mark, rest]) {
  if (rest.trimEnd().endsWith(ENDS[mark]) && rest.trim() !== ENDS[mark]) return at + 1;
  if (rest.includes(ENDS[mark])) return at;
  const most = Math.min(lines.length, at + FORMULA_LINES);
  for (let end = at + 1; end < most && lines[end].trim(); end += 1) if (lines[end].trimEnd().endsWith(ENDS[mark])) return end + 1;
  return at;
}

const begins = (line) => FORMULA.test(line) || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line) || ITEM.test(line);
const indent = (line) => /^\s*/.exec(line)[0].replaceAll("\t", "    ").length;

function endOfList(lines, at) {
  const margin = indent(lines[at]);
  const isOrdered = /^\s*\d/.test(lines[at]);
  let end = at + 1;
  for (let next = at + 1; next < lines.length; next += 1) {
    const line = lines[next];
    if (!line.trim()) continue;
    const item = ITEM.exec(line);
    const isMore = item && indent(line) >= margin && (indent(line) > margin + 1 || /^\d/.test(item[2]) === isOrdered);
    const isInside = indent(line) > margin || (next === end && !begins(line));
    if (!isMore && !isInside) break;
    end = next + 1;
  }
  return end;
}

function list(lines, depth) {
  const margin = indent(lines[0]);
  const mark = ITEM.exec(lines[0])[2];
  const shown = element(/^\d/.test(mark) ? "ol" : "ul");
  if (/^\d/.test(mark)) shown.start = parseInt(mark, 10);
  let held = [];
  const close = () => {
    if (!held.length) return;
    const task = /^\[([ xX])\]\s+(.*)$/.exec(held[0]);
    if (task) held[0] = `${task[1] === " " ? "☐" : "☑"} ${task[2]}`;
    const parts = rendered(held, depth + 1);
    // The first line of an item is not a paragraph of its own.
    const first = parts[0]?.tagName === "P" ? [...parts[0].childNodes] : parts.slice(0, 1);
    shown.append(element("li", {}, ...first, ...parts.slice(1)));
    held = [];
  };
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && indent(line) <= margin + 1) {
      close();
      held = [item[3]];
    } else {
      held.push(line.slice(Math.min(indent(line), margin + 2)));
    }
  }
  close();
  return shown;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
  const sides = cells(lines[1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "middle" : "end") : ""));
  const row = (line, kind) =>
    element("tr", {}, ...cells(line).map((cell, column) => element(kind, { className: sides[column] ?? "" }, ...spans(cell))));
  return element("div", { className: "table", tabIndex: 0 },
    element("table", {},
      element("thead", {}, row(lines[0], "th")),
      element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")))));
}

function code(text, language) {
  const button = element("button", { type: "button", className: "copy" }, icon("copy"), "Copy");
  button.dataset.words = "yes";
  button.onclick = () => copy(text, button);
  return element("figure", { className: "code" },
    element("figcaption", {}, element("span", { textContent: language || "text" }), button),
    element("pre", { tabIndex: 0 }, highlighted(text, language.toLowerCase())));
}

function spans(text) {
  const made = [];
  let from = 0;
  for (const match of text.matchAll(SPANS)) {
    if (match.index > from) made.push(text.slice(from, match.index));
    made.push(span(match[0], match.groups));
    from = match.index + match[0].length;
  }
  if (from < text.length) made.push(text.slice(from));
  return made;
}

function span(whole, kind) {
  if (kind.code) {
    const mark = /^`+/.exec(whole)[0].length;
    return element("code", { textContent: whole.slice(mark, -mark).replace(/^ (.*) $/, "$1") });
  }
  if (kind.formula) return formula(whole.startsWith("$$") || whole.startsWith("\\(") ? whole.slice(2, -2).trim() : whole.slice(1, -1), false);
  if (kind.image) {
    const [, alt, address] = /^!\[(.*)\]\((.*)\)$/s.exec(whole);
    return isPicture(address) ? picture(address, alt) : link(address, [alt || address], whole);
  }
  if (kind.escape) return whole.slice(1);
  if (kind.bare) return link(whole, [whole]);
  if (kind.link) {
    const middle = whole.lastIndexOf("](");
    return link(whole.slice(middle + 2, -1), spans(whole.slice(1, middle)), whole);
  }
  if (kind.strong) return element("strong", {}, ...spans(whole.slice(2, -2)));
  if (kind.strike) return element("s", {}, ...spans(whole.slice(2, -2)));
  return element("em", {}, ...spans(whole.slice(1, -1)));
}

function link(address, words, instead = address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return instead;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return instead;
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, ...words);
}
