// Highlighted code and formulas. Both libraries are loaded when first needed. Their results are copied as elements and
// text nodes of known kinds, so that no input can become markup, script or a link.

import { element } from "./dom.js";

const CODE_LONGEST = 40_000;
const CODE_DEEPEST = 200;
const FORMULA_LONGEST = 4_000;
const MACROS_LONGEST = 300; // of a formula that defines macros, each use of which repeats their text
const CELLS_MOST = 10_000; // of tables, whose rows are all made as long as the longest
const MATHML = "http://www.w3.org/1998/Math/MathML";
const INERT = new Set(["annotation", "annotation-xml", "semantics", "maction"]); // may contain HTML or links
const ATTRIBUTES = new Set(["accent", "accentunder", "class", "columnalign", "columnlines", "columnspacing", "columnspan", "depth", "display", "displaystyle", "fence", "form", "height", "largeop", "linebreak", "linethickness", "lspace", "mathbackground", "mathcolor", "mathsize", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowalign", "rowlines", "rowspacing", "rowspan", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width"]);

const later = (load) => {
  let loading = null;
  const held = { value: null, load: () => (loading ??= load().then((value) => { held.value = value; }, () => undefined)) };
  return held;
};

const highlighter = later(async () => (await import("./vendor/highlight.min.js")).default);
const formulas = later(() => new Promise((resolve, reject) => {
  document.head.append(element("script", { src: "vendor/temml.min.js", onload: () => resolve(globalThis.temml), onerror: reject }));
}));

// Fills an element by `fill`, which returns false while the library is not loaded.
function filled(place, library, fill) {
  fill();
  if (!library.value) library.load().then(() => library.value && fill());
  return place;
}

// Returns a code element with its text highlighted, if the language is known.
export function highlighted(text, language) {
  const place = element("code", { textContent: text });
  if (!language || text.length > CODE_LONGEST) return place;
  return filled(place, highlighter, () => {
    if (!highlighter.value?.getLanguage(language)) return;
    const { _emitter: { root } } = highlighter.value.highlight(text, { language, ignoreIllegals: true });
    place.replaceChildren(...root.children.map((node) => copied(node)));
  });
}

// Returns a copy of a part of highlighted code; what is deeper in others than the limit is not highlighted.
function copied(node, depth = 0) {
  if (typeof node === "string") return node;
  if (depth === CODE_DEEPEST) return plain(node);
  const kind = (node.scope ?? "").split(".")[0].replace(/[^a-z_-]/g, "");
  return element("span", { className: kind ? `hl-${kind}` : "" }, ...node.children.map((child) => copied(child, depth + 1)));
}

function plain(node) {
  const texts = [];
  const rest = [node];
  while (rest.length) {
    const next = rest.pop();
    if (typeof next === "string") texts.push(next);
    else for (let place = next.children.length - 1; place >= 0; place -= 1) rest.push(next.children[place]);
  }
  return texts.join("");
}

const count = (source, what) => source.match(what)?.length ?? 0;
const isCostly = (source) =>
  source.length > (/\\([gex]?def|let|futurelet|(re)?newcommand|providecommand)(?![a-z])/i.test(source) ? MACROS_LONGEST : FORMULA_LONGEST) ||
  count(source, /&/g) * count(source, /\\\\|\\cr(?![a-z])/gi) > CELLS_MOST;

// Returns an element with a formula, or with its source while it cannot be set.
export function formula(source, isBlock) {
  const place = element(isBlock ? "div" : "span", { className: "formula" }, element("code", { textContent: source }));
  if (isBlock) place.tabIndex = 0;
  if (isCostly(source)) return place;
  return filled(place, formulas, () => {
    if (!formulas.value) return;
    const made = element("span");
    try {
      formulas.value.render(source, made, { displayMode: isBlock, throwOnError: true, trust: false, maxExpand: 200, maxSize: [10, 50] });
    } catch {
      return; // not a formula: its source stays
    }
    if ([...made.querySelectorAll("*")].every(isHarmless)) {
      made.firstElementChild?.setAttribute("aria-label", source);
      place.replaceChildren(...made.childNodes);
    }
  });
}

const isHarmless = (node) =>
  node.namespaceURI === MATHML && !INERT.has(node.localName) && [...node.attributes].every(({ name }) => name === "style" || ATTRIBUTES.has(name));
