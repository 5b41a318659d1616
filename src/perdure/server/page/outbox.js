// Messages that no response confirmed yet, kept over a reload of the tab. They are sent again under their own keys, so
// that none is stored twice, whether it had arrived or not.

const KEY = "perdure.unsent";
const unkept = new Set(); // keys of messages that are too large to be kept

// Returns what is kept, oldest first: {thread, isNew, graph, title, message}.
export const all = () => JSON.parse(sessionStorage.getItem(KEY) ?? "[]");

export function keep({ id: thread, isNew, graph, title }, message) {
  const kept = all();
  const place = kept.findIndex((one) => one.message.key === message.key);
  kept.splice(place < 0 ? kept.length : place, 1, { thread, isNew, graph, title, message });
  try {
    sessionStorage.setItem(KEY, JSON.stringify(kept));
    unkept.delete(message.key);
  } catch {
    unkept.add(message.key); // the storage is full; the browser asks before it leaves the page
  }
}

export function drop({ key }) {
  unkept.delete(key);
  sessionStorage.setItem(KEY, JSON.stringify(all().filter(({ message }) => message.key !== key)));
}

addEventListener("beforeunload", (event) => { if (unkept.size) event.preventDefault(); });
