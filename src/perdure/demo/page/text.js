// Turns an answer's text into elements: paragraphs, lists, headings, code, bold and italic. Text only ever becomes
// text nodes, so nothing that a model writes can become markup or script.

const LINE = {
  fence: /^\s*```/,
  heading: /^\s*#{1,6}\s+(.*)$/,
  bullet: /^\s*[-*•]\s+(.*)$/,
  number: /^\s*(\d+)[.)]\s+(.*)$/,
};
const SPAN = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/;

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function rendered(text) {
  const blocks = document.createDocumentFragment();
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  let paragraph = [];
  let list = null;

  const closeParagraph = () => {
    if (paragraph.length) blocks.append(element("p", {}, ...spans(paragraph.join("\n"))));
    paragraph = [];
  };
  const item = (kind, content, start) => {
    closeParagraph();
    if (list?.tagName.toLowerCase() !== kind) {
      list = element(kind);
      if (kind === "ol") list.start = start;
      blocks.append(list);
    }
    list.append(element("li", {}, ...spans(content)));
  };

  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    let match;
    if (LINE.fence.test(line)) {
      closeParagraph();
      list = null;
      const code = [];
      while (++at < lines.length && !LINE.fence.test(lines[at])) code.push(lines[at]);
      blocks.append(element("pre", {}, element("code", { textContent: code.join("\n") })));
    } else if ((match = LINE.heading.exec(line))) {
      closeParagraph();
      list = null;
      blocks.append(element("h3", {}, ...spans(match[1])));
    } else if ((match = LINE.bullet.exec(line))) {
      item("ul", match[1]);
    } else if ((match = LINE.number.exec(line))) {
      item("ol", match[2], Number(match[1]));
    } else if (line.trim() === "") {
      closeParagraph();
    } else {
      list = null;
      paragraph.push(line);
    }
  }
  closeParagraph();
  return blocks;
}

function spans(text) {
  return text.split(SPAN).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return element("code", { textContent: part.slice(1, -1) });
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return element("strong", { textContent: part.slice(2, -2) });
    if (part.length > 2 && SPAN.test(part)) return element("em", { textContent: part.slice(1, -1) });
    return part;
  });
}
