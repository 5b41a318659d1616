// What may be done with a thread: one form for each permission that the viewer has.

import { act } from "./api.js";
import { announce, field, fill, make } from "./dom.js";
import { address } from "./address.js";

// `where` returns the selected checkpoint; `done` shows the thread anew, at a checkpoint if one is given.
export function actions(about, where, done) {
  const may = new Set(about.permissions);
  const id = about.thread_id;
  const failed = about.runs.filter((run) => run.state === "failed");
  const open = about.queue.run_id;
  return [
    may.has("edit") ? edit() : null,
    may.has("run") ? panel("Run from here", [make("p.quiet", {}, "Runs the graph on from the selected checkpoint, the latest if none is selected. From an earlier one this makes a fork.")], "Run", () => act("run", { id, ...where() })) : null,
    may.has("answer") && about.status === "interrupted" && !about.is_asleep ? answer() : null,
    may.has("cancel") && open ? panel("Cancel the run", [check("rollback", "Remove what it stored")], "Cancel", (form) => act("cancel", { id, run_id: open, rollback: form.elements.rollback.checked })) : null,
    may.has("tag") ? tag() : null,
    may.has("retry") && about.unsent.length ? panel("Send a reply again", [field("Number of the reply", make("select", { name: "reply" }, about.unsent.map((number) => make("option", { value: number }, String(number)))))], "Send", (form) => act("retry", { id, reply: Number(form.elements.reply.value) })) : null,
    may.has("retry") && failed.length ? panel("Run a failed run again", [field("Run", make("select", { name: "run" }, failed.map((run) => make("option", { value: run.run_id }, run.run_id))))], "Run again", (form) => act("rerun", { id, run_id: form.elements.run.value })) : null,
    may.has("retry") && failed.length ? panel("Discard a failed run", [field("Run", make("select", { name: "run" }, failed.map((run) => make("option", { value: run.run_id }, run.run_id))))], "Discard", (form) => act("discard", { id, run_id: form.elements.run.value })) : null,
    may.has("export") ? panel("Export", [], "Download as JSON", download) : null,
    may.has("delete") ? remove() : null,
  ].filter(Boolean);

  function panel(title, fields, button, go, after = (result) => done(result.checkpoint_id)) {
    const problem = make("p.problem", { role: "alert", hidden: true });
    const form = make("form", {}, fields, problem, make("div.row", {}, make("button", { type: "submit" }, button)));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const submit = form.querySelector("button[type=submit]");
      submit.disabled = true;
      problem.hidden = true;
      try {
        const result = await go(form);
        announce(`${title}: done`);
        after(result);
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
      submit.disabled = false;
    });
    return make("details", {}, make("summary", {}, title), form);
  }

  function edit() {
    const values = make("textarea", { name: "values", required: true, spellcheck: false, value: "" });
    values.placeholder = '{"messages": [{"role": "user", "content": "…", "id": "of the message to replace"}]}';
    const node = make("input", { name: "node", autocomplete: "off", placeholder: "the one that ran last" });
    return panel("Edit and fork", [
      make("p.quiet", {}, "Writes these values at the selected checkpoint, as if a node had returned them. At an earlier one this makes a fork, and the original stays."),
      field("Values by channel, as JSON", values), field("As the node", node)], "Write",
      () => act("edit", { id, ...where(), values: parsed(values.value), as_node: node.value.trim() }));
  }

  function answer() {
    const value = make("textarea", { name: "value", required: true, spellcheck: false });
    return panel("Answer the interrupt", [field("Answer, as JSON or text", value)], "Answer", () => act("answer", { id, value: orText(value.value) }));
  }

  function tag() {
    const name = make("input", { name: "name", required: true, maxLength: 256, autocomplete: "off" });
    const forms = panel("Tag", [make("p.quiet", {}, "A tagged checkpoint is never pruned."), field("Name", name)], "Tag the checkpoint", () => act("tag", { id, ...where(), name: name.value.trim() }), () => done());
    forms.append(...about.tags.map((each) => {
      const button = make("button", { type: "button" }, `Remove the tag ${each.name}`);
      button.onclick = () => act("untag", { id, name: each.name }).then(() => done(), (error) => fill(forms, make("p.problem", { role: "alert" }, error.message)));
      return make("p", {}, button);
    }));
    return forms;
  }

  function remove() {
    const confirm = make("input", { name: "confirm", required: true, autocomplete: "off", spellcheck: false });
    return panel("Delete", [make("p.problem", {}, "The thread is removed with everything in it. It cannot be brought back."), field("Type the thread's id to confirm", confirm)], "Delete the thread", () => act("delete", { id, confirm: confirm.value }), () => (location.hash = address("threads")));
  }

  async function download() {
    const found = await act("export", { id });
    const link = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(found, null, 2)], { type: "application/json" })), download: "thread.json" });
    link.click();
    URL.revokeObjectURL(link.href);
    return {};
  }
}

function check(name, text) {
  return make("label.check", {}, make("input", { type: "checkbox", name }), text);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("The values are not JSON.");
  }
}

function orText(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
