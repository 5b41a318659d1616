// Actions on many threads, a part in each request. What is done is shown where the action was begun, or above another
// view that is shown meanwhile. The browser asks before the page is left, and the next visit says how far it came.

import { act } from "./api.js";
import { tenant } from "./address.js";
import { announce, at, make } from "./dom.js";

const KEPT = "perdure.inspector.bulk";
let underWay = 0;

addEventListener("beforeunload", (event) => {
  if (!underWay) return;
  event.preventDefault();
  event.returnValue = true; // Some browsers ask only with it.
});

const kept = sessionStorage.getItem(KEPT);
if (kept !== null) {
  sessionStorage.removeItem(KEPT);
  showAbove(`The page was left before this was over: ${kept} The rest was not begun.`, " ", makeClose());
}

function showAbove(...children) {
  at("bulk").append(make("p.notice", {}, ...children));
}

function makeClose() {
  const close = make("button", { type: "button", onclick: () => close.parentElement.remove() }, "Close");
  return close;
}

// `add` takes each part, and `words` says what is done so far, or in the end. Returns true at the end, and false if it
// was stopped or a request failed. `place` is a status.
export async function inParts(name, given, place, add, words) {
  const whose = tenant(); // The view of another tenant may be opened meanwhile.
  const progress = make("span", {}, words(false));
  const stop = make("button", { type: "button" }, "Stop");
  stop.onclick = () => (stop.disabled = true);
  let [more, cursor] = [true, null];
  place.className = "quiet";
  place.replaceChildren(progress, " ", stop);
  underWay += 1;
  try {
    while (more && !stop.disabled) {
      sessionStorage.setItem(KEPT, words(false));
      const part = await act(name, { ...given, cursor: cursor ?? "" }, whose);
      add(part);
      cursor = part.cursor ?? "";
      more = part.more ?? part.cursor !== null;
      progress.textContent = words(!more);
      if (more && !progress.isConnected) showAbove(progress, " ", stop);
    }
    if (more) progress.textContent += " Stopped: the rest was not begun.";
  } catch (problem) {
    progress.textContent = cursor === null ? problem.message : `${progress.textContent} ${problem.message}`;
    progress.className = "problem";
  }
  underWay -= 1;
  sessionStorage.removeItem(KEPT);
  announce(progress.textContent);
  if (!progress.isConnected) showAbove(progress);
  if (at("bulk").contains(progress)) progress.parentElement.append(" ", makeClose());
  stop.remove();
  return !more;
}
