// Elements and icons. Text is only ever set as text nodes, so that no text can become markup or script.

const ICONS = {
  plus: "M10 4v12M4 10h12",
  close: "M5 5l10 10M15 5L5 15",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  up: "M10 16V4M4.5 9.5L10 4l5.5 5.5",
  down: "M10 4v12M4.5 10.5L10 16l5.5-5.5",
  stop: "M6 6h8v8H6z",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  edit: "M4 16l.7-3.2 8-8a1.4 1.4 0 0 1 2 0l.6.6a1.4 1.4 0 0 1 0 2l-8 8zM11.5 6L14 8.5",
  trash: "M4 6h12M8 6V4.5h4V6M5.5 6l.7 9.5h7.6l.7-9.5M8.5 9v4M11.5 9v4",
  copy: "M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3",
  check: "M4.5 10.5l3.5 3.5 7.5-8",
  again: "M15.5 10a5.5 5.5 0 1 1-1.6-3.9L16 8.2M16 4.2v4h-4",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7M10 2.5V4M10 16v1.5M2.5 10H4M16 10h1.5M4.7 4.7l1 1M14.3 14.3l1 1M15.3 4.7l-1 1M5.7 14.3l-1 1",
  moon: "M15.5 11.8A6 6 0 0 1 8.2 4.5a6 6 0 1 0 7.3 7.3z",
  auto: "M10 3.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM10 3.5v13M13 5v10",
  clip: "M14.5 9.5l-5 5a3 3 0 0 1-4.2-4.2l6-6a2 2 0 0 1 2.8 2.8l-6 6a1 1 0 0 1-1.4-1.4l5-5",
  stored: "M4 5.5c0-1.1 2.7-2 6-2s6 .9 6 2-2.7 2-6 2-6-.9-6-2v9c0 1.1 2.7 2 6 2s6-.9 6-2v-9M4 10c0 1.1 2.7 2 6 2s6-.9 6-2",
  look: "M8.8 3.8a5 5 0 1 0 0 10 5 5 0 0 0 0-10M12.5 12.5l4 4",
  tool: "M12.7 3.6a3.8 3.8 0 0 0-3.6 5.1L4 13.8 6.2 16l5.1-5.1a3.8 3.8 0 0 0 4.7-4.6l-2.2 2.2-2-.4-.4-2z",
};
const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function icon(name) {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 20 20");
  drawn.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawn.append(path);
  return drawn;
}

// An icon button; its label is for screen readers and the tooltip.
export function iconButton(name, label, onclick, className = "icon-button") {
  const button = element("button", { type: "button", className, title: label, onclick }, icon(name));
  button.setAttribute("aria-label", label);
  return button;
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure connection there is no clipboard, but a selection can still be copied.
    const held = element("textarea", { value: text, className: "unseen" });
    document.body.append(held);
    held.select();
    document.execCommand("copy");
    held.remove();
    button.focus();
  }
  const before = [...button.childNodes];
  const label = button.getAttribute("aria-label");
  button.replaceChildren(icon("check"), ...(button.dataset.words ? ["Copied"] : []));
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.replaceChildren(...before);
    if (label) button.setAttribute("aria-label", label);
    else button.removeAttribute("aria-label");
  }, 1600);
}

export const identifier = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
};

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

let announced = "";
export function announce(words) {
  if (words === announced) words += "\u00a0"; // a screen reader ignores unchanged text
  announced = words;
  at("announcer").textContent = words;
}
