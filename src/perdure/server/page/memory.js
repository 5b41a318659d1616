// What a conversation began with: the entries of the user's memory that were recalled, each with a button that forgets
// it. The texts are those that are known now, so that what was forgotten elsewhere is shown as such.

import * as api from "./api.js";
import { announce, element } from "./dom.js";

export const RECALLED = "memory-recall";

export function makeMemory() {
  const list = element("ul");
  const summary = element("summary");
  const article = element("article", { className: "message result memory" }, element("details", { className: "tool", open: true }, summary, list));
  article.setAttribute("aria-label", "Remembered from earlier conversations");
  let before = null;
  const update = ({ message }) => {
    const ids = message.additional_kwargs?.recalled ?? [];
    const key = JSON.stringify(ids);
    if (key === before) return;
    before = key;
    summary.textContent = `Remembered from earlier conversations: ${ids.length}`;
    load(list, ids);
  };
  return { element: article, update };
}

async function load(list, ids) {
  try {
    const { facts, summaries } = await api.memory();
    const known = new Map([...facts.map((fact) => [fact.id, fact.text]), ...summaries.map((one) => [one.thread, one.text])]);
    list.replaceChildren(...ids.map((id) => line(id, known.get(id))));
  } catch (failure) {
    list.replaceChildren(element("li", { className: "quiet", textContent: `What was remembered cannot be shown: ${failure.message}` }));
  }
}

function line(id, text) {
  if (text === undefined) return element("li", { className: "quiet", textContent: "Forgotten" });
  const button = element("button", { type: "button", className: "word", textContent: "Forget" });
  const entry = element("li", {}, element("span", { textContent: text }), " ", button);
  button.onclick = async () => {
    button.disabled = true;
    try {
      await api.forget(id);
      entry.replaceWith(line(id));
      announce("Forgotten");
    } catch (failure) {
      button.disabled = false;
      button.textContent = `Not forgotten: ${failure.message}`;
    }
  };
  return entry;
}
