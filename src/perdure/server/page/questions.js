// Interrupts of a graph and the forms that answer them. Common forms get buttons: LangChain's review of tool calls, and
// the action requests of LangGraph's prebuilt agents. Everything else is answered by text or by JSON.

import { element } from "./dom.js";
import { show } from "./markdown.js";

const pretty = (value) => JSON.stringify(value, null, 2);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Returns the elements of all interrupts; `answer` is called with the value that resumes the run.
export function questionsOf(interrupts, answer) {
  const answers = new Map();
  return interrupts.map((interrupt, number) => {
    const given = (value) => {
      if (interrupts.length === 1) return answer(value);
      answers.set(interrupt.id, value);
      card.classList.add("answered");
      card.querySelectorAll("button, textarea, select").forEach((control) => { control.disabled = true; });
      if (answers.size === interrupts.length) answer(Object.fromEntries(answers));
      return undefined;
    };
    const card = element("section", { className: "question" }, ...asked(interrupt.value, given));
    card.setAttribute("aria-label", interrupts.length > 1 ? `Question ${number + 1} of ${interrupts.length}` : "Question");
    return card;
  });
}

function asked(value, answer) {
  const request = Array.isArray(value) && value.length === 1 ? value[0] : value;
  if (isObject(value) && Array.isArray(value.action_requests)) return reviewed(value, answer);
  if (isObject(request) && request.action_request) {
    return requested(request, (response) => answer(Array.isArray(value) ? [response] : response));
  }
  return open(value, answer);
}

const heading = (words) => element("h2", { textContent: words });

function words(text) {
  const body = element("div", { className: "body" });
  show(body, text);
  return body;
}

function action(name, args) {
  return element("div", { className: "action" }, element("code", { textContent: name }), element("pre", { tabIndex: 0 }, element("code", { textContent: pretty(args ?? {}) })));
}

const button = (label, onclick, className = "") => element("button", { type: "button", textContent: label, onclick, className });

// LangChain's human-in-the-loop middleware: a decision for each action.
function reviewed({ action_requests: requests, review_configs: configs = [] }, answer) {
  const decisions = [];
  return requests.flatMap((request, number) => {
    const allowed = configs.find(({ action_name: name }) => name === request.name)?.allowed_decisions ?? ["approve", "edit", "reject"];
    const row = element("div", { className: "answers" });
    const decide = (decision) => {
      decisions[number] = decision;
      row.replaceChildren(element("span", { className: "decided", textContent: `Decided: ${decision.type}` }));
      if (Object.keys(decisions).length === requests.length) answer({ decisions });
    };
    choices(row, {
      approve: allowed.includes("approve") && (() => decide({ type: "approve" })),
      edit: allowed.includes("edit") && ((args) => decide({ type: "edit", edited_action: { name: request.name, args } })),
      reject: allowed.includes("reject") && ((message) => decide(message ? { type: "reject", message } : { type: "reject" })),
      args: request.args,
    });
    return [heading(number ? "And this?" : "May the agent do this?"), ...(request.description ? [words(request.description)] : []), action(request.name, request.args), row];
  });
}

// LangGraph's prebuilt agents and agent inboxes.
function requested({ action_request: { action: name, args }, config = {}, description }, answer) {
  const row = element("div", { className: "answers" });
  const may = (what) => config[what] ?? true;
  choices(row, {
    approve: may("allow_accept") && (() => answer({ type: "accept", args: null })),
    edit: may("allow_edit") && ((changed) => answer({ type: "edit", args: { action: name, args: changed } })),
    reject: (message) => answer(message && may("allow_respond") ? { type: "response", args: message } : { type: "ignore", args: null }),
    args,
  });
  return [heading("May the agent do this?"), ...(description ? [words(description)] : []), action(name, args), row];
}

function choices(row, { approve, edit, reject, args }) {
  const first = [];
  if (approve) first.push(button("Approve", approve, "primary"));
  if (edit) first.push(button("Edit", () => row.replaceChildren(...editor(pretty(args ?? {}), "Approve with changes", true, edit, back))));
  if (reject) first.push(button("Reject", () => row.replaceChildren(...editor("", "Reject", false, reject, back, "Say why, if you like")), "danger"));
  const back = () => {
    row.replaceChildren(...first);
    first[0].focus();
  };
  row.replaceChildren(...first);
}

function editor(text, label, isJson, done, back, placeholder = "") {
  const field = element("textarea", { value: text, placeholder, rows: isJson ? Math.min(10, text.split("\n").length) : 2 });
  field.setAttribute("aria-label", isJson ? "What is to be done, as JSON" : "Why not");
  const fault = element("p", { className: "fault", hidden: true });
  fault.setAttribute("role", "alert");
  const finish = () => {
    if (!isJson) return done(field.value.trim());
    const parsed = read(field.value, fault);
    return parsed && done(parsed.value);
  };
  setTimeout(() => field.focus());
  field.onkeydown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      back();
    }
  };
  return [field, fault, button(label, finish, "primary"), button("Back", back)];
}

function read(text, fault) {
  try {
    fault.hidden = true;
    return { value: JSON.parse(text) };
  } catch (error) {
    fault.textContent = `This is not JSON: ${error.message}.`;
    fault.hidden = false;
    return null;
  }
}

// Any other interrupt: its text, or its JSON, and an answer that is text unless marked as JSON.
function open(value, answer) {
  const text = typeof value === "string" ? value : isObject(value) ? value.question ?? value.message ?? value.prompt ?? value.query : null;
  const options = isObject(value) && Array.isArray(value.options) ? value.options : typeof value === "boolean" ? [true, false] : [];
  // The buttons show the options.
  const rest = isObject(value) && typeof text === "string" ? Object.fromEntries(Object.entries(value).filter(([, held]) => held !== text && held !== options)) : value;
  const shown = [];
  if (typeof text === "string") shown.push(words(text));
  if (typeof text !== "string" || (isObject(rest) && Object.keys(rest).length)) {
    shown.push(element("pre", { tabIndex: 0 }, element("code", { textContent: pretty(rest) })));
  }
  const field = element("textarea", { rows: 2, placeholder: "Your answer" });
  field.setAttribute("aria-label", "Your answer");
  const kind = element("select", {}, element("option", { value: "text", textContent: "as text" }), element("option", { value: "json", textContent: "as JSON" }));
  kind.setAttribute("aria-label", "What the answer is");
  const fault = element("p", { className: "fault", hidden: true });
  fault.setAttribute("role", "alert");
  const send = () => {
    if (kind.value === "text") return answer(field.value);
    const parsed = read(field.value, fault);
    return parsed && answer(parsed.value);
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && kind.value === "text") {
      event.preventDefault();
      send();
    }
  };
  const row = element("div", { className: "answers" }, ...options.map((option) => button(typeof option === "string" ? option : JSON.stringify(option), () => answer(option))));
  return [heading("The agent asks"), ...shown, ...(options.length ? [row] : []), field, fault,
    element("div", { className: "answers" }, button("Answer", send, "primary"), kind)];
}
