// A real server of HTTP/2 and HTTP/1.1 on loopback that shows its requests, for tests.
// Arguments: a file with key and certificate, and a directory of repositories for git,
// and of one program.
import { spawn } from "node:child_process";
import { createReadStream, readFileSync } from "node:fs";
import http2 from "node:http2";

const [pemFile, repositories] = process.argv.slice(2);
const pem = readFileSync(pemFile);

const tell = (row) => process.stdout.write(JSON.stringify(row) + "\n");

function git(request, response) {
  const url = new URL(request.url, "https://x");
  const program = spawn("git", ["http-backend"], {
    env: {
      GIT_PROJECT_ROOT: repositories,
      GIT_HTTP_EXPORT_ALL: "1",
      REMOTE_USER: "me",
      REQUEST_METHOD: request.method,
      PATH_INFO: url.pathname.slice("/git".length),
      QUERY_STRING: url.search.slice(1),
      CONTENT_TYPE: request.headers["content-type"] ?? "",
      HTTP_CONTENT_ENCODING: request.headers["content-encoding"] ?? "",
      PATH: process.env.PATH,
    },
  });
  request.pipe(program.stdin);
  program.stdin.on("error", () => {});
  const pieces = [];
  program.stdout.on("data", (piece) => pieces.push(piece));
  program.on("close", () => {
    const all = Buffer.concat(pieces);
    const end = all.indexOf("\r\n\r\n");
    const rows = all.subarray(0, end).toString().split("\r\n").map((line) => line.split(": "));
    const head = Object.fromEntries(rows);
    const status = parseInt(head.Status ?? "200", 10);
    delete head.Status;
    response.writeHead(status, head);
    response.end(all.subarray(end + 4));
  });
}

function answer(request, response) {
  const shown = request.headers.authorization ?? "none";
  const path = request.url.split("?")[0];
  tell({ path, version: request.httpVersion, authorization: shown });
  if (path.startsWith("/git/")) {
    if (shown === "none") {
      response.writeHead(401, { "www-authenticate": 'Basic realm="tests"' });
      response.end();
    } else git(request, response);
  } else if (path === "/cargo/config.json") {
    const here = `https://${request.headers.host ?? request.authority}/cargo`;
    response.end(JSON.stringify({ dl: `${here}/dl`, api: here, "auth-required": true }));
  } else if (path === "/cargo/ns/m-/nsm-sample") {
    const row = { name: "nsm-sample", vers: "1.0.0", deps: [], features: {}, yanked: false };
    response.end(JSON.stringify({ ...row, cksum: "0".repeat(64) }) + "\n");
  } else if (path === "/program") {
    createReadStream(`${repositories}/program`).pipe(response);
  } else if (path === "/upload") {
    let size = 0;
    request.on("data", (piece) => (size += piece.length));
    request.on("end", () => response.end(`${size} bytes`));
  } else if (path === "/trailers") {
    response.write("ok");
    response.addTrailers({ "x-seen": shown });
    response.end();
  } else if (path === "/big") {
    response.end(Buffer.alloc(20_000_000, shown + "\n"));
  } else if (path === "/leave") {
    response.stream.session.goaway(0, request.stream.id);
    response.end(shown);
  } else response.end(shown);
}

const server = http2.createSecureServer({ key: pem, cert: pem, allowHTTP1: true }, answer);
server.listen(0, "127.0.0.1", () => tell({ port: server.address().port }));
process.stdin.on("end", () => process.exit()).resume();
