import { call, callOnce } from "./api.js";

let signedIn = null; // {email, session, headers}

// Returns the session of the user, after signing up or in.
async function session({ email, password }) {
  if (signedIn?.email === email) return signedIn;
  try {
    await call("POST", "users", { email, password });
  } catch (error) {
    if (error.status !== 409) throw error; // 409: there is an account
  }
  const { access_token: token } = await call("POST", "login", { email, password });
  const headers = { Authorization: `Bearer ${token}` };
  const { session_id: id } = await call("POST", "sessions", {}, headers);
  signedIn = { email, session: id, headers };
  return signedIn;
}

// An access token is valid for 15 minutes; then the page signs in again, to a new session.
async function withSession(fields, work) {
  try {
    return await work(await session(fields));
  } catch (error) {
    if (error.status !== 401 || !signedIn) throw error;
    signedIn = null;
    return work(await session(fields));
  }
}

export default {
  title: "Movies",
  intro: "Users and sessions in tables of the application, and the graph's checkpoints, in databases of its own. The first message signs you up.",
  fields: [{ name: "email", label: "Email", value: "ada@example.com" }, { name: "password", label: "Password", value: "correct horse" }],
  send: (text, fields) => withSession(fields, async ({ session: id, headers }) => {
    const { answer } = await callOnce(`sessions/${id}/messages`, { text }, headers);
    return [{ who: "agent", text: answer }];
  }),
  actions: [{
    label: "What is stored",
    run: (fields) => withSession(fields, async ({ session: id, headers }) => {
      const rows = await call("GET", `sessions/${id}/messages`, undefined, headers);
      return { entries: rows.flatMap(({ question, answer }) => [{ who: "you", text: question }, { who: "agent", text: answer ?? "…" }]) };
    }),
  }],
};
