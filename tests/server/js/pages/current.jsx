// A chat on `useStream` of @langchain/react, which speaks the event streaming protocol.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useStream } from "@langchain/react";

const address = new URLSearchParams(location.search);

const human = (text) => ({ messages: [{ type: "human", content: text }] });
const given = () => document.querySelector("#text").value;

function Message({ message, stream }) {
  const edit = async () => {
    const history = await stream.client.threads.getHistory(stream.threadId, { limit: 100 });
    const seen = history.filter((state) => state.values.messages?.some(({ id }) => id === message.id)).at(-1);
    await stream.submit(human(given()), { forkFrom: seen.parent_checkpoint.checkpoint_id });
  };
  return (
    <li className={`message ${message.getType()}`}>
      <span className="body">{message.text}</span>
      {message.getType() === "human" && <button className="edit" onClick={edit} />}
    </li>
  );
}

function Chat() {
  const [threadId, setThreadId] = useState(address.get("thread"));
  const stream = useStream({
    apiUrl: address.get("api"),
    assistantId: address.get("graph"),
    threadId,
    onThreadId: (id) => {
      setThreadId(id);
      address.set("thread", id);
      history.replaceState(null, "", `?${address}`);
    },
  });
  return (
    <main>
      <ul>
        {stream.messages.map((message, index) => (
          <Message key={message.id ?? index} message={message} stream={stream} />
        ))}
      </ul>
      {stream.interrupt && (
        <section id="question">
          <span className="asked">{JSON.stringify(stream.interrupt.value)}</span>
          {/* By its id: after a reload the question is shown before the stream has told of it. */}
          <button
            className="answer"
            onClick={() => stream.respond(given(), { interruptId: stream.interrupt.id })}
          />
        </section>
      )}
      <p id="state">{stream.isLoading ? "busy" : "idle"}</p>
      <p id="error">{stream.error ? String(stream.error.message ?? stream.error) : ""}</p>
      <input id="text" />
      <button id="send" onClick={() => stream.submit(human(given()))} />
      <button id="stop" onClick={() => stream.stop()} />
    </main>
  );
}

createRoot(document.querySelector("#root")).render(<Chat />);
