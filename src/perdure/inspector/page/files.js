// The files that an agent keeps in its state: their paths and sizes, and their text when one is opened.

import { get } from "./api.js";
import { bytes, make, number } from "./dom.js";

// where: the thread, and optionally a namespace and a checkpoint.
export async function files(where) {
  const place = make("div.files");
  const list = make("ol", { "aria-label": "Files" });
  const more = make("button", { type: "button", hidden: true }, "More files");
  place.append(list, more);
  let cursor = null;
  const load = async () => {
    const page = await get("files", { ...where, after: cursor });
    list.append(...page.files.map((each) => entry(each, where)));
    cursor = page.cursor;
    more.hidden = cursor === null;
    more.textContent = `More files (${number(page.total - list.children.length)})`;
    if (!list.children.length) place.replaceChildren(make("p.quiet", {}, "The state of this thread has no files."));
  };
  more.onclick = () => busy(more, place, load);
  await load();
  return place;
}

function entry(each, where) {
  const body = make("div");
  const when = each.modified_at ? `changed ${each.modified_at.slice(0, 19).replace("T", " ")}` : "";
  const folded = make("details", {},
    make("summary", {}, make("code", {}, each.path), make("span.quiet", {}, ` ${bytes(each.size)} `, when)), body);
  folded.addEventListener("toggle", async () => {
    if (!folded.open || body.children.length) return;
    if (!each.is_text) return body.append(make("p.quiet", {}, "This file is not text."));
    const text = make("pre");
    const more = make("button", { type: "button", hidden: true });
    body.append(text, more);
    let start = 0;
    const load = async () => {
      const part = await get("file", { ...where, path: each.path, start });
      text.append(part.text);
      start = part.start + [...part.text].length;
      more.hidden = start >= part.length || !part.text;
      more.textContent = `More of it: ${number(part.length - start)} characters`;
      if (!part.length) text.replaceWith(make("p.quiet", {}, "(empty)"));
    };
    more.onclick = () => busy(more, body, load);
    await busy(more, body, load);
  });
  return make("li", {}, folded);
}

async function busy(button, place, load) {
  button.disabled = true;
  try {
    await load();
  } catch (error) {
    place.prepend(make("p.problem", { role: "alert" }, error.message));
  }
  button.disabled = false;
}
