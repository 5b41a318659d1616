// Filters of a view that this browser keeps under a name. A filter is the address of the view, so a link shares it.

import { address } from "./address.js";
import { announce, field, fill, make } from "./dom.js";

const KEY = "perdure.inspector.filters";
const MOST = 30;

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) || "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.name === "string" && typeof each.view === "string" && each.asked && typeof each.asked === "object") : [];
  } catch {
    return []; // Whatever is stored there is not ours.
  }
}

const SPANS = [["", "any time"], ["1h", "the last hour"], ["1d", "the last day"], ["7d", "the last week"], ["30d", "the last 30 days"]];

// The choice of the time in which a thread changed.
export function changedIn(chosen) {
  return make("select", { name: "since" }, SPANS.map(([value, label]) => make("option", { value, selected: value === (chosen || "") }, label)));
}

// `current` returns the view's conditions by name.
export function savedFilters(view, current) {
  const place = make("div.row.filters");
  const name = make("input", { name: "filter", maxLength: 60, autocomplete: "off", placeholder: "a name" });
  const form = make("form.row", {}, field("Save this filter as", name), make("button", { type: "submit" }, "Save"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = Object.fromEntries(Object.entries(current()).filter(([, value]) => value));
    const wanted = name.value.trim();
    if (!wanted) return;
    const others = read().filter((each) => each.view !== view || each.name !== wanted);
    store([...others, { view, name: wanted, asked }].slice(-MOST));
    name.value = "";
    announce(`Saved as ${wanted}`);
  });

  function store(filters) {
    localStorage.setItem(KEY, JSON.stringify(filters));
    show();
  }

  function show() {
    const own = read().filter((each) => each.view === view);
    fill(place, own.map((each) => {
      const remove = make("button", { type: "button", onclick: () => store(read().filter((other) => other.view !== view || other.name !== each.name)) }, "×");
      remove.setAttribute("aria-label", `Remove the filter ${each.name}`);
      const asked = Object.fromEntries(Object.entries(each.asked).map(([key, value]) => [key, String(value)]));
      return make("span.filter", {}, make("a", { href: address(view, asked) }, each.name), remove);
    }), make("details", {}, make("summary", {}, "Save"), form));
  }

  show();
  return place;
}
