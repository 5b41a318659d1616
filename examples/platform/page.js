import { call } from "./api.js";

const signIn = (user) => ({
  label: `Sign in as ${user}, and chat`,
  async run() {
    const { token } = await call("GET", `tokens/${user}`);
    sessionStorage.setItem("perdure.token", token); // where the chat page keeps it
    location.assign("chat/");
  },
});

export default {
  title: "Platform",
  intro: "Two agents for signed-in users: the guide remembers what you say of yourself (I drink green tea … What do I drink?), the desk asks before it books (a table for two). Each user sees only their own conversations and memories.",
  actions: [signIn("ada"), signIn("bob")],
};
