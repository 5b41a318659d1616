// Parts of a message's content: text, reasoning, images and files, in the forms that models and clients write them; and
// messages put together from streamed pieces.

import { element, icon } from "./dom.js";

const PICTURE = /^data:image\/(png|jpe?g|gif|webp|avif|bmp);base64,[A-Za-z0-9+/=\s]+$/i;
const TEXT_FILE = /^Attached file "([^"\n]*)":\n\n/;

export const isUser = (message) => message.type === "human" || message.role === "user";
export const isAnswer = (message) => /^ai/i.test(message.type ?? "") || message.role === "assistant";

// Returns an entry of a state's list of messages as a message: a graph may keep anything in it.
export function shaped(entry) {
  if (entry === null || typeof entry !== "object" || Array.isArray(entry)) return { type: "value", content: typeof entry === "string" ? entry : JSON.stringify(entry) };
  const calls = entry.tool_calls ?? [];
  const known = Array.isArray(calls) ? calls.filter((call) => call && typeof call === "object") : [];
  return known.length === calls.length ? entry : { ...entry, tool_calls: known };
}

const partsOf = ({ content }) => (Array.isArray(content) ? content.map((part) => (typeof part === "string" ? { type: "text", text: part } : part ?? {})) : []);
const isTextFile = (part) => part.type === "text" && TEXT_FILE.test(part.text ?? "");

// Returns a message's text without reasoning and attachments.
export const textOf = (message) => {
  const { content } = message;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return partsOf(message).filter((part) => !isTextFile(part) && typeof part.text === "string" && /text/.test(part.type ?? "text") && part.type !== "text-plain").map((part) => part.text).join("");
};

// Returns what a model wrote before its answer, if its provider shows it.
export const reasoningOf = (message) => {
  const parts = partsOf(message).map((part) => {
    if (part.type === "thinking") return part.thinking ?? "";
    if (!/^reasoning/.test(part.type ?? "")) return "";
    const summaries = Array.isArray(part.summary) ? part.summary.map((one) => one?.text ?? "").join("\n\n") : "";
    return part.reasoning ?? part.reasoning_content?.text ?? (summaries || part.text || "");
  });
  const beside = message.additional_kwargs?.reasoning_content;
  return [typeof beside === "string" ? beside : "", ...parts].join("").trim();
};

const named = (part) => part.filename ?? part.extras?.filename ?? part.metadata?.filename ?? part.metadata?.name ?? part.extras?.name ?? part.file?.filename;

// Returns the attachments: {kind, name, mime, data}; `data` is base64 or, of a text, the text, or `address` is a URL.
export const attachmentsOf = (message) => partsOf(message).flatMap((part) => {
  if (isTextFile(part)) return [{ kind: "text", name: TEXT_FILE.exec(part.text)[1], data: part.text.replace(TEXT_FILE, ""), part }];
  if (part.type === "text-plain") return [{ kind: "text", name: named(part) ?? part.title ?? "text", data: part.text ?? "", part }];
  const mime = part.mime_type ?? part.mimeType ?? part.source?.media_type ?? "";
  const data = part.base64 ?? part.data ?? part.source?.data;
  const address = typeof part.image_url === "string" ? part.image_url : part.image_url?.url ?? part.file?.file_data ?? part.url ?? part.source?.url;
  const kind = /^(image|input_image|image_url)$/.test(part.type ?? "") ? "image" : /^(file|document|audio|video|input_audio)$/.test(part.type ?? "") ? "file" : null;
  if (!kind || (typeof data !== "string" && typeof address !== "string")) return [];
  return [{ kind, name: named(part) ?? (kind === "image" ? "image" : "file"), mime, part, address: typeof data === "string" ? `data:${mime || "application/octet-stream"};base64,${data}` : address }];
});

export const partsBeside = (message) => attachmentsOf(message).map(({ part }) => part);

// Returns the content of a message to be sent.
export const contentWith = (text, parts) => (parts.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text);

// Adds a streamed piece to what came before it of the same message.
export function joined(before, piece) {
  if (!before || !/chunk/i.test(piece.type ?? "")) return { ...piece, type: "ai" };
  const reasoning = (before.additional_kwargs?.reasoning_content ?? "") + (piece.additional_kwargs?.reasoning_content ?? "");
  return {
    ...before,
    content: joinedContent(before.content, piece.content),
    additional_kwargs: { ...before.additional_kwargs, ...piece.additional_kwargs, ...(reasoning ? { reasoning_content: reasoning } : {}) },
  };
}

const GROWING = ["text", "thinking", "reasoning"];

function joinedContent(before, piece) {
  if (typeof before === "string" && typeof piece === "string") return before + piece;
  const parts = [...partsOf({ content: before })];
  if (typeof before === "string" && before) parts.push({ type: "text", text: before });
  for (const part of typeof piece === "string" ? (piece ? [{ type: "text", text: piece }] : []) : partsOf({ content: piece })) {
    const last = parts.findLastIndex((one) => one.type === part.type && (part.index === undefined || one.index === part.index));
    const isNext = last >= 0 && (part.index !== undefined || last === parts.length - 1);
    const field = GROWING.find((name) => typeof part[name] === "string");
    if (isNext && field) parts[last] = { ...parts[last], ...part, [field]: (parts[last][field] ?? "") + part[field] };
    else if (isNext && Array.isArray(part.summary)) parts[last] = { ...parts[last], summary: summed(parts[last].summary ?? [], part.summary) };
    else parts.push(part);
  }
  return parts;
}

function summed(before, pieces) {
  const found = before.map((one) => ({ ...one }));
  for (const piece of pieces) {
    const same = found.find((one) => (one.index ?? 0) === (piece.index ?? 0));
    if (same) same.text = (same.text ?? "") + (piece.text ?? "");
    else found.push({ ...piece });
  }
  return found;
}

// Elements

export const isPicture = (address) => typeof address === "string" && PICTURE.test(address);
export const picture = (address, name) => element("img", { className: "picture", src: address, alt: name || "image", loading: "lazy" });

// Fills an element with a message's attachments. An image of another host is not loaded; its address is shown.
export function showAttachments(place, message) {
  const found = attachmentsOf(message);
  const key = found.map(({ kind, name, data, address }) => `${kind} ${name} ${(data ?? address).length}`).join("\n");
  if (place.shownFiles === key) return;
  place.shownFiles = key;
  place.replaceChildren(...found.map(attachment));
}

function attachment({ kind, name, mime, data, address }) {
  if (kind === "image" && isPicture(address)) return element("figure", { className: "attached" }, picture(address, name));
  if (kind === "text") {
    return element("details", { className: "tool attached" }, element("summary", { textContent: `${name} (text)` }),
      element("pre", { tabIndex: 0 }, element("code", { textContent: data })));
  }
  const where = address.startsWith("data:") ? `${mime || "file"}, ${sized((address.length - address.indexOf(",") - 1) * 0.75)}` : address;
  return element("span", { className: "attached file" }, icon("clip"), element("span", { textContent: name }), element("span", { className: "quiet", textContent: where }));
}

export const sized = (bytes) => (bytes < 1000 ? `${Math.round(bytes)} B` : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
