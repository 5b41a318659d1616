// A chat on `useStream` of @langchain/langgraph-sdk/react, with what agent-chat-ui does: send, stop, edit,
// switch between branches, answer a question, and go on after a reload.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useStream } from "@langchain/langgraph-sdk/react";

const address = new URLSearchParams(location.search);

function setThread(threadId) {
  address.set("thread", threadId);
  history.replaceState(null, "", `?${address}`);
}

const human = (text) => ({ messages: [{ type: "human", content: text }] });
const textOf = ({ content }) => (typeof content === "string" ? content : content.map((block) => block.text).join(""));

function Branches({ metadata, onSwitch }) {
  const options = metadata?.branchOptions ?? [];
  const at = options.indexOf(metadata?.branch);
  if (options.length < 2) return null;
  return (
    <span className="branches">
      <button className="previous" disabled={at === 0} onClick={() => onSwitch(options[at - 1])} />
      <span className="at">{`${at + 1}/${options.length}`}</span>
      <button className="next" disabled={at === options.length - 1} onClick={() => onSwitch(options[at + 1])} />
    </span>
  );
}

function Message({ message, metadata, stream }) {
  const edit = () => {
    const text = document.querySelector("#text").value;
    const checkpoint = metadata?.firstSeenState?.parent_checkpoint;
    stream.submit(human(text), { checkpoint, streamMode: ["values"], streamResumable: true });
  };
  return (
    <li className={`message ${message.type}`}>
      <span className="body">{textOf(message)}</span>
      {message.type === "human" && <button className="edit" onClick={edit} />}
      <Branches metadata={metadata} onSwitch={(branch) => stream.setBranch(branch)} />
    </li>
  );
}

function Chat() {
  const [threadId, onThreadId] = useState(address.get("thread"));
  const [custom, setCustom] = useState([]);
  const stream = useStream({
    apiUrl: address.get("api"),
    assistantId: address.get("graph"),
    threadId,
    onThreadId: (id) => {
      onThreadId(id);
      setThread(id);
    },
    fetchStateHistory: { limit: 100 },
    reconnectOnMount: address.get("reconnect") !== "no",
    onCustomEvent: (event) => setCustom((before) => [...before, event]),
  });
  const send = () => {
    const text = document.querySelector("#text").value;
    const given = address.get("graph") === "walk" ? JSON.parse(text) : human(text);
    stream.submit(given, {
      streamResumable: address.has("resumable") || undefined,
      optimisticValues: (before) => ({ ...before, messages: [...(before.messages ?? []), ...(given.messages ?? [])] }),
    });
  };
  return (
    <main>
      <ul>
        {stream.messages.map((message, index) => (
          <Message
            key={message.id ?? index}
            message={message}
            metadata={stream.getMessagesMetadata(message, index)}
            stream={stream}
          />
        ))}
      </ul>
      {stream.interrupt && (
        <section id="question">
          <span className="asked">{JSON.stringify(stream.interrupt.value)}</span>
          <button
            className="answer"
            onClick={() => stream.submit(undefined, { command: { resume: document.querySelector("#text").value } })}
          />
        </section>
      )}
      <p id="state">{stream.isLoading ? "busy" : "idle"}</p>
      <p id="error">{stream.error ? String(stream.error.message ?? stream.error) : ""}</p>
      <p id="custom">{JSON.stringify(custom)}</p>
      <input id="text" />
      <button id="send" onClick={send} />
      <button id="stop" onClick={() => stream.stop()} />
    </main>
  );
}

createRoot(document.querySelector("#root")).render(<Chat />);
