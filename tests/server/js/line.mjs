// A relay of HTTP to a server, which writes down what is asked, and cuts every connection when it is told to.
import http from "node:http";

export class Line {
  requests = [];
  #open = new Set();

  /** A relay to a server, at a port of its own. */
  static async to(url) {
    const line = new Line();
    const { hostname, port } = new URL(url);
    line.server = http.createServer((asked, answered) => line.#relay(asked, answered, hostname, port));
    line.server.on("connection", (socket) => {
      line.#open.add(socket);
      socket.on("close", () => line.#open.delete(socket));
    });
    await new Promise((ready) => line.server.listen(0, "127.0.0.1", ready));
    line.url = `http://127.0.0.1:${line.server.address().port}`;
    return line;
  }

  cut() {
    for (const socket of this.#open) socket.destroy();
  }

  /** What was asked since this was called last. */
  taken() {
    return this.requests.splice(0);
  }

  #relay(asked, answered, hostname, port) {
    const noted = { method: asked.method, path: asked.url, last: asked.headers["last-event-id"] ?? null };
    this.requests.push(noted);
    const { method, url: path, headers } = asked;
    const onward = http.request({ hostname, port, method, path, headers }, (answer) => {
      noted.status = answer.statusCode;
      answered.writeHead(answer.statusCode, answer.headers);
      answered.flushHeaders();
      answer.pipe(answered);
      answer.on("error", () => answered.destroy());
    });
    onward.on("error", () => answered.destroy());
    answered.on("close", () => onward.destroy());
    asked.pipe(onward);
  }
}
