// Open questions of all threads, each with the form that answers it.

import { act, get } from "./api.js";
import { address } from "./address.js";
import { announce, brief, facts, field, fill, focusIfLost, make, number, time, userLink } from "./dom.js";

const AGES = [["", "any time"], ["1h", "over an hour ago"], ["1d", "over a day ago"], ["7d", "over a week ago"]];
const PARTS_MAX = 25;
const pretty = (value) => JSON.stringify(value, null, 2);

export async function showQuestions(main, asked) {
  const user = make("input", { type: "search", name: "user", value: asked.user || "", autocomplete: "off", placeholder: "user_id or owner", "data-search": "", maxLength: 300 });
  const older = make("select", { name: "older" }, AGES.map(([value, words]) => make("option", { value, selected: value === (asked.older || "") }, words)));
  const form = make("form.row", { role: "search" }, field("User", user), field("Asked", older), make("button", { type: "submit" }, "Search"));
  const note = make("p.quiet", { role: "status" });
  const list = make("section");
  const more = make("button", { type: "button", hidden: true }, "More");
  fill(main, make("h1", {}, "Questions"), form, note, list, more);
  let [cursor, count, turn] = [null, 0, 0];

  async function load(goesOn) {
    const mine = ++turn;
    if (!goesOn) {
      [cursor, count] = [null, 0];
      list.replaceChildren();
    }
    note.className = "quiet";
    const before = count;
    for (let part = 0; part < PARTS_MAX; part += 1) {
      const page = await get("questions", { user: user.value.trim(), older: older.value, cursor });
      if (mine !== turn) return;
      const mayAnswer = page.permissions.includes("answer");
      list.append(...page.questions.map((each) => shown(each, mayAnswer)));
      count += page.questions.length;
      cursor = page.cursor;
      if (cursor === null || count > before) break;
    }
    more.hidden = cursor === null;
    if (goesOn) focusIfLost(list.children[before]?.querySelector("h2"));
    note.textContent = count ? `${number(count)} ${count === 1 ? "question waits" : "questions wait"} for an answer${cursor === null ? "" : " so far"}.` : "No thread waits for an answer.";
    announce(note.textContent);
  }
  const failed = (problem) => {
    note.textContent = problem.message;
    note.className = "problem";
  };
  const go = (event) => {
    event.preventDefault();
    history.replaceState(null, "", address("questions", { user: user.value.trim(), older: older.value }));
    load(false).catch(failed);
  };
  form.addEventListener("submit", go);
  older.addEventListener("change", go);
  more.onclick = () => load(true).catch(failed);
  await load(false);
  return () => {
    turn += 1;
  };
}

function shown(question, mayAnswer) {
  const name = question.title || question.thread_id;
  const card = make("section.channel.question", { "aria-label": `Question of ${name}` });
  const head = [
    make("h2", {}, make("a", { href: address("thread", { id: question.thread_id }) }, brief(name))),
    facts([["Asked", time(question.since)], ["Deadline", question.deadline ? time(question.deadline) : null], ["Until", question.until ? time(question.until) : null], ["User", userLink(question.user)], ["Graph", brief(question.graph)]]),
    question.fault ? make("p.problem", {}, question.fault) : null,
    make("pre.asked", {}, question.text),
  ];
  const outcome = make("p", { role: "status", className: "quiet" });
  const body = make("div");
  // Not from the card of another question, to which the reader went meanwhile.
  const takeFocus = (element) => {
    if (document.activeElement === document.body || card.contains(document.activeElement)) focusIfLost(element);
  };
  const answer = async (value) => {
    const pressed = document.activeElement;
    for (const control of body.querySelectorAll("button, textarea, input, select")) control.disabled = true;
    outcome.className = "quiet";
    try {
      await act("answer", { id: question.thread_id, value, ...(question.interrupt_id ? { interrupt_id: question.interrupt_id } : {}) });
      body.replaceChildren();
      outcome.textContent = "Answered. The thread goes on.";
      takeFocus(card.querySelector("h2"));
    } catch (problem) {
      outcome.textContent = problem.message;
      outcome.className = "problem";
      for (const control of body.querySelectorAll("button, textarea, input, select")) control.disabled = false;
      if (body.contains(pressed)) takeFocus(pressed);
    }
    announce(outcome.textContent);
  };
  if (mayAnswer && !question.fault) fill(body, ...formOf(question, answer));
  fill(card, ...head, hasMore(question) ? make("details", {}, make("summary", {}, "All that was asked"), make("pre", {}, pretty(question.value))) : null, body, outcome);
  return card;
}

const hasMore = (question) => question.value !== null && question.value !== question.text;
const button = (words, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, words);

function formOf(question, answer) {
  const { form } = question;
  if (form.kind === "pause") return [make("div.row", {}, button("Go on", () => answer(true)))];
  if (form.kind === "review") return reviewed(form.actions, (decisions) => answer({ decisions }));
  if (form.kind === "request") return requested(form.actions[0], (response) => answer(form.is_list ? [response] : response));
  if (form.kind === "choice") return [make("div.row", {}, form.options.map((option) => button(typeof option === "string" ? option : JSON.stringify(option), () => answer(option)))), make("details", {}, make("summary", {}, "Another answer"), ...open(answer))];
  if (form.kind === "fields") return [...fields(form.fields, answer), make("details", {}, make("summary", {}, "Another answer"), ...open(answer))];
  return open(answer);
}

// LangChain's human-in-the-loop middleware: a decision for each action.
function reviewed(actions, answer) {
  const decisions = [];
  return actions.map((action, place) => {
    const decide = (decision, row) => {
      decisions[place] = decision;
      fill(row, make("p.quiet", {}, `Decided: ${decision.type}`));
      if (actions.every((_, each) => decisions[each])) return void answer(decisions);
      focusIfLost(row.closest(".question").querySelector("[role=group] button") || row);
    };
    return decision(action, {
      approve: (row) => decide({ type: "approve" }, row),
      edit: (args, row) => decide({ type: "edit", edited_action: { name: action.name, args } }, row),
      reject: (message, row) => decide(message ? { type: "reject", message } : { type: "reject" }, row),
    });
  });
}

// LangGraph's HumanInterrupt: one action.
function requested(action, answer) {
  return [decision(action, {
    approve: () => answer({ type: "accept", args: null }),
    edit: (args) => answer({ type: "edit", args: { action: action.name, args } }),
    reject: () => answer({ type: "ignore", args: null }),
    respond: (message) => answer({ type: "response", args: message }),
  })];
}

function decision(action, take) {
  const row = make("div");
  const may = (name) => action.decisions.includes(name) && take[name];
  const buttons = () => fill(row, make("div.row", {},
    may("approve") ? button("Approve", () => take.approve(row)) : null,
    may("edit") ? button("Edit", () => editor("The arguments, as JSON", pretty(action.args), "Approve with changes", (text) => take.edit(JSON.parse(text), row))) : null,
    may("respond") ? button("Respond", () => editor("Your response", "", "Send", (text) => take.respond(text, row))) : null,
    may("reject") ? button("Reject", () => editor("The reason, if you like", "", "Reject", (text) => take.reject(text.trim(), row))) : null));
  function editor(label, value, words, done) {
    const input = make("textarea", { value, spellcheck: false });
    const fault = make("p.problem", { role: "alert", hidden: true });
    const finish = () => {
      try {
        done(input.value);
      } catch (problem) {
        fault.textContent = problem instanceof SyntaxError ? `This is not JSON: ${problem.message}` : problem.message;
        fault.hidden = false;
      }
    };
    const back = () => {
      buttons();
      row.querySelector("button")?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") back();
    });
    fill(row, field(label, input), fault, make("div.row", {}, button(words, finish), button("Back", back)));
    input.focus();
  }
  buttons();
  return make("div", { role: "group", "aria-label": action.name }, make("p.mark", {}, make("code", {}, action.name)), make("pre", {}, pretty(action.args)), row);
}

// A form made of a JSON Schema with simple fields.
function fields(list, answer) {
  const inputs = list.map((each) => {
    const input = each.options ? make("select", {}, make("option", { value: "" }, "—"), each.options.map((option, place) => make("option", { value: String(place), selected: option === each.default }, String(option))))
      : each.type === "boolean" ? make("input", { type: "checkbox", checked: each.default === true })
      : make("input", { type: each.type === "string" ? "text" : "number", step: each.type === "integer" ? "1" : "any", value: each.default ?? "", autocomplete: "off" });
    input.required = each.is_required && each.type !== "boolean";
    return input;
  });
  const form = make("form", {}, list.map((each, place) => {
    const label = each.description ? `${each.title}: ${each.description}` : each.title;
    return each.type === "boolean" && !each.options ? make("label.check", {}, inputs[place], label) : field(label, inputs[place]);
  }), make("div.row", {}, make("button", { type: "submit" }, "Answer")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = {};
    list.forEach((each, place) => {
      const input = inputs[place];
      if (each.options) {
        if (input.value !== "") given[each.name] = each.options[Number(input.value)];
      } else if (each.type === "boolean") given[each.name] = input.checked;
      else if (input.value !== "") given[each.name] = each.type === "string" ? input.value : Number(input.value);
    });
    answer(given);
  });
  return [form];
}

function open(answer) {
  const input = make("textarea", { required: true, spellcheck: false });
  const kind = make("select", {}, make("option", { value: "text" }, "text"), make("option", { value: "json" }, "JSON"));
  const fault = make("p.problem", { role: "alert", hidden: true });
  const form = make("form", {}, field("Your answer", input), fault, make("div.row", {}, field("It is", kind), make("button", { type: "submit" }, "Answer")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    fault.hidden = true;
    if (kind.value === "text") return void answer(input.value);
    try {
      answer(JSON.parse(input.value));
    } catch (problem) {
      fault.textContent = `This is not JSON: ${problem.message}`;
      fault.hidden = false;
    }
  });
  return [form];
}
