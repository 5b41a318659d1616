// Files that are to be sent with the next message: chosen, pasted or dropped; read, checked against the limits, and shown
// until they are sent. Large photos are made smaller.

import { sized } from "./content.js";
import { announce, at, element, iconButton } from "./dom.js";

const TEXT_LARGEST = 200_000;
const PHOTO_LARGEST = 900_000;
const PHOTO_SIDE = 2048;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST = 10;

const drafts = new Map(); // the files of each conversation: {name, bytes, part, isImage}, by its key
let held = [];
let reading = 0; // files that are being read
let room = 0; // bytes that all files may have together
let changed = () => undefined;

export const isAny = () => held.length > 0;
export const isReading = () => reading > 0;

// Shows the files of a conversation, which stay with it while others are open.
export function open(key) {
  if (!drafts.has(key)) drafts.set(key, []);
  held = drafts.get(key);
  refuse("");
  draw();
}

// Gives the shown files to the conversation that a new one has become.
export function become(key) {
  for (const [before, files] of drafts) if (files === held) drafts.delete(before);
  drafts.set(key, held);
}

// Begins to accept files: `bytes` is the largest body of a request; `listener` is called on every change.
export function begin(listener) {
  changed = listener;
  at("attach").addEventListener("click", () => at("files").click());
  at("files").addEventListener("change", () => {
    add([...at("files").files]);
    at("files").value = "";
  });
  at("text").addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
  const main = document.querySelector("main");
  main.addEventListener("dragover", (event) => { if ([...event.dataTransfer.types].includes("Files")) event.preventDefault(); });
  main.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
}

// Sets the limit from the largest body of a request. Base64 takes a third more than the file, and the message needs some.
export function limit(bytes) {
  room = Math.max(0, Math.floor((bytes - 64_000) * 0.74));
  at("attach").hidden = !bytes;
  at("attach").title = `Attach images, PDF or text, together up to ${sized(room)}`;
}

// Returns the parts for the message that is sent now, and forgets them.
export function take() {
  const parts = held.splice(0).map(({ part }) => part);
  draw();
  return parts;
}

async function add(files) {
  const own = held;
  reading += 1;
  changed();
  const fault = await addTo(own, files);
  reading -= 1;
  if (own === held) refuse(fault);
  draw();
}

// Reads files one after the other, and returns the reason why one of them and those after it were not attached.
async function addTo(own, files) {
  for (const file of files) {
    try {
      if (own.length >= MOST) throw new Error(`A message may have ${MOST} files.`);
      const read = await readAs(file);
      const left = room - own.reduce((sum, { bytes }) => sum + bytes, 0);
      if (read.bytes > left) throw new Error(`${file.name} has ${sized(read.bytes)}, and ${sized(Math.max(0, left))} are left of the ${sized(room)} that a message may have.`);
      own.push({ name: file.name, ...read });
      announce(`Attached ${file.name}`);
    } catch (failure) {
      return failure.message;
    }
  }
  return "";
}

async function readAs(file) {
  const filename = file.name || "file";
  if (PICTURES.includes(file.type)) {
    const blob = file.size > PHOTO_LARGEST && file.type !== "image/gif" ? await smaller(file) : file;
    return { bytes: blob.size, part: { type: "image", base64: await base64(blob), mime_type: blob.type, extras: { filename } }, isImage: true };
  }
  if (file.type === "application/pdf") return { bytes: file.size, part: { type: "file", base64: await base64(file), mime_type: file.type, filename } };
  if (file.size <= TEXT_LARGEST) {
    const text = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => null);
    if (text !== null && !text.includes("\0")) return { bytes: file.size, part: { type: "text", text: `Attached file "${filename.replace(/["\n]/g, "'")}":\n\n${text}` } };
  }
  throw new Error(`${filename} cannot be attached: PNG, JPEG, GIF and WebP images, PDF, and UTF-8 text up to ${sized(TEXT_LARGEST)} can.`);
}

async function smaller(file) {
  const bitmap = await createImageBitmap(file).catch(() => { throw new Error(`${file.name} is not an image that this browser can read.`); });
  const scale = Math.min(1, PHOTO_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.85));
  return blob && blob.size < file.size ? blob : file;
}

const base64 = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(new Error(`The file cannot be read: ${reader.error?.message ?? "unknown"}`));
  reader.readAsDataURL(blob);
});

function refuse(words) {
  at("attached-fault").textContent = words;
  at("attached-fault").hidden = !words;
}

function draw() {
  at("attached").hidden = !held.length;
  at("attached").replaceChildren(...held.map((one) => {
    const gone = iconButton("close", `Remove ${one.name}`, () => {
      held.splice(held.indexOf(one), 1);
      draw();
      at("text").focus();
    });
    const preview = one.isImage ? [element("img", { src: `data:${one.part.mime_type};base64,${one.part.base64}`, alt: "" })] : [];
    return element("li", {}, ...preview, element("span", { textContent: one.name }), element("span", { className: "quiet", textContent: sized(one.bytes) }), gone);
  }));
  changed();
}
