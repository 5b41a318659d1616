// The page of an example. `example.js` exports {title, intro, fields, history, send, actions}:
//   fields: [{name, label, value, options?}], what a request needs beside its message
//   history(fields): the entries {who, text, note?} that are stored
//   send(text, fields): the entries of the answer
//   actions: [{label, run(fields)}]; what `run` returns is shown, {entries} in place of what was said, anything else as JSON

import example from "./example.js";

const at = (id) => document.getElementById(id);
const fields = () => Object.fromEntries((example.fields ?? []).map(({ name }) => [name, at(`field-${name}`).value]));

function made(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function add({ who, text, note }) {
  const entry = made("div", { className: `entry ${who}` }, text);
  if (note) entry.append(made("small", { textContent: note }));
  at("log").append(entry);
  entry.scrollIntoView({ block: "nearest" });
}

function show(entries) {
  at("log").replaceChildren();
  entries.forEach(add);
}

// Runs one of the example's functions; an error is shown.
async function attempt(work) {
  at("fault").hidden = true;
  at("send").disabled = true;
  try {
    return await work();
  } catch (error) {
    at("fault").textContent = error.message;
    at("fault").hidden = false;
    return null;
  } finally {
    at("send").disabled = false;
  }
}

async function reload() {
  if (example.history) show((await attempt(() => example.history(fields()))) ?? []);
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || at("send").disabled) return;
  at("text").value = "";
  add({ who: "you", text });
  const entries = await attempt(() => example.send(text, fields()));
  if (entries) entries.forEach(add);
  else at("text").value ||= text; // to be sent again
  at("text").focus();
});

document.title = `${example.title} · Perdure example`;
at("title").textContent = example.title;
at("intro").textContent = example.intro;
for (const { name, label, value, options } of example.fields ?? []) {
  const field = options
    ? made("select", { id: `field-${name}` }, ...options.map((one) => made("option", { value: one, textContent: one })))
    : made("input", { id: `field-${name}`, value: value ?? "", autocomplete: "off" });
  field.addEventListener("change", reload);
  at("fields").append(made("label", {}, label, field));
}
for (const { label, run } of example.actions ?? []) {
  at("actions").append(made("button", { type: "button", textContent: label, onclick: async () => {
    const found = await attempt(() => run(fields()));
    if (found === null || found === undefined) return;
    if (found.entries) show(found.entries);
    at("shown").hidden = Boolean(found.entries);
    at("shown").textContent = found.entries ? "" : JSON.stringify(found, null, 2);
  } }));
}
at("form").hidden = !example.send;
reload();
