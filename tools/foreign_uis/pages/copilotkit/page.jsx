// CopilotKit's chat, as its documentation wires it, over its runtime and the AG-UI adapter for LangGraph.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { CopilotKit, useLangGraphInterrupt } from "@copilotkit/react-core";
import { CopilotChat } from "@copilotkit/react-ui";

const address = new URLSearchParams(location.search);

function Question({ event, resolve }) {
  const [isAnswered, setAnswered] = useState(false);
  const action = { name: "delete_file", args: { path: "b.txt" } };
  const decide = (decision) => () => {
    setAnswered(true);
    resolve({ decisions: [decision] });
  };
  return (
    <section id="question">
      <span className="asked">{JSON.stringify(event.value)}</span>
      <button disabled={isAnswered} onClick={decide({ type: "approve" })}>
        approve
      </button>
      <button disabled={isAnswered} onClick={decide({ type: "edit", edited_action: action })}>
        change
      </button>
      <button disabled={isAnswered} onClick={decide({ type: "reject", message: "keep it" })}>
        reject
      </button>
    </section>
  );
}

function Chat() {
  useLangGraphInterrupt({ render: ({ event, resolve }) => <Question event={event} resolve={resolve} /> });
  return <CopilotChat labels={{ initial: "Hello.", placeholder: "Say something" }} />;
}

createRoot(document.querySelector("#root")).render(
  <CopilotKit runtimeUrl="/api/copilotkit" agent="agent" threadId={address.get("thread")} enableInspector={false}>
    <Chat />
  </CopilotKit>,
);
