// Listens to the control socket while the main thread is busy. It runs in the worker's thread, for
// which its source is taken, and what it calls by name. Only another isolate, or native code, can
// end JavaScript that runs. It starts beside the main thread, which reads the first message itself.
const listenInWorker = () => {
  const fs = require('node:fs');
  const net = require('node:net');
  const inspector = require('node:inspector');
  const { parentPort, workerData: shared } = require('node:worker_threads');
  const vm = require('node:vm');
  const { CONTROL_FD, INTERRUPTED, PHASE, RUNNING, INTERRUPTING, state } = shared;
  const { check, dissect, choose } = questions(inspector);
  // Node's own parser, which it has for its REPL.
  const parse = (text, options) =>
    require('internal/deps/acorn/acorn/dist/acorn').parse(text, options);
  const { rewrite, mentionsConstant } = makeRewriter(vm, parse, looksLikeModule, asExpression);
  const stripTypes = makeTypeStripper(vm, parse, asExpression);
  const { letOtherSend, send } = makeWriter({
    Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared,
  });
  let buffered = [], size = 0, running = 0, token = '', interrupting = false, ended = null;
  let current;  // the message of the running execution
  const finish = (id, exit_code) => {
    if (id !== running) return;
    if (interrupting) { ended = exit_code; return; }
    running = 0;
    send({ type: 'done', id, token, exit_code });
  };
  parentPort.on('message', (message) => {
    if (message.type === 'display' || message.type === 'note') send(message);
    else if (message.type === 'names') {
      send({ type: 'answer', id: message.id, ...choose(message, message.names.split('\0')) });
    } else if (message.type === 'first') listen(message);
    else if (message.type === 'conflicts') {
      if (message.id !== running || interrupting) return;
      const rewritten = rewrite(current, new Set(message.names));
      parentPort.postMessage({ ...prepare(vm, current, rewritten), names: undefined });
    }
    else finish(message.id, message.exit_code);
  });
  // Ends whatever JavaScript runs on the main thread. The session lives for that moment only:
  // with one open, process.exit() would wait for it. The execution's end is told after it, so
  // that a late termination can't hit the next.
  const interrupt = (id) => {
    if (id !== running || interrupting) return;
    if (Atomics.compareExchange(state, PHASE, RUNNING, INTERRUPTING) !== RUNNING) return;
    Atomics.store(state, INTERRUPTED, id);
    // It may still be on its way out of telling the end of the execution before. What is ended
    // there would hold the lock for ever, since no finally clause is run then. It sends no more.
    letOtherSend();
    interrupting = true;
    ended = null;
    const session = new inspector.Session();
    session.connectToMainThread();
    const settle = (tries) => session.post('Runtime.evaluate', { expression: '0' }, (error) => {
      if (error && tries > 0) { settle(tries - 1); return; }
      session.disconnect();
      interrupting = false;
      // The main thread answers again: it has been ended, or it waits in an await, which nothing
      // can end: then the execution is over and what it waits for is left alone.
      if (ended !== null) finish(id, ended);
      else parentPort.postMessage({ type: 'abandon', id });
    });
    session.post('Runtime.terminateExecution', () => settle(10));
  };
  const take = (message) => {
    if (message.type === 'run') {
      running = message.id;
      token = message.token;
      const { code, note } = stripTypes(message.code);
      if (note) send({ type: 'note', text: note });
      current = { ...message, code };
      const rewritten = needsRewriting(current, false) || mentionsConstant(code)
        ? rewrite(current) : null;
      const prepared = prepare(vm, current, rewritten);
      Atomics.store(state, PHASE, RUNNING);
      parentPort.postMessage(prepared);
    } else if (message.type === 'interrupt') interrupt(message.id);
    else if (message.type === 'complete') {
      const wanted = dissect(message.before);
      if (wanted) parentPort.postMessage({ type: 'complete', id: message.id, ...wanted });
      else send({ type: 'answer', id: message.id, prefix: '', matches: [] });
    } else if (message.type === 'check') {
      let answer = {};
      try { answer = check(message.code); } catch {}
      send({ type: 'answer', id: message.id, ...answer });
    }
  };
  const receive = (data) => {
    buffered.push(data);
    size += data.length;
    while (size >= 4) {
      if (buffered[0].length < 4) buffered = [Buffer.concat(buffered)];
      const end = 4 + buffered[0].readUInt32BE(0);
      if (size < end) return;
      const all = Buffer.concat(buffered);
      buffered = [all.subarray(end)];
      size -= end;
      take(JSON.parse(all.subarray(4, end).toString()));
    }
  };
  // Takes over from the main thread, which has read the first message.
  const listen = ({ first, isTaken }) => {
    // Before the first execution begins: a thread's first stream opens a file, which could take the
    // descriptor of the standard input that is being replaced.
    const socket = new net.Socket({ fd: CONTROL_FD, readable: true, writable: true });
    if (isTaken) ({ id: running, token } = first);
    else take(first);
    socket.on('data', receive);
    socket.on('close', () => process.exit());
    socket.on('error', () => process.exit());
  };
};

// The worker has its own of each: code cannot have replaced there what they use.
const worker = new Worker(`
const questions = ${questions};
const rewriteImports = ${rewriteImports};
const asExpression = ${asExpression};
const prepare = ${prepare};
const needsRewriting = ${needsRewriting};
const looksLikeModule = ${looksLikeModule};
const makeRewriter = ${makeRewriter};
const makeTypeStripper = ${makeTypeStripper};
const makeWriter = ${makeWriter};
(${listenInWorker})();
`, {
  eval: true, workerData: shared, execArgv: ['--expose-internals'],
  // Else Node opens its own streams to pass the thread's output on; see Output.
  stdout: true, stderr: true,
});
const reallyExit = process.reallyExit.bind(process);
const exit = process.exit.bind(process);
worker.on('exit', () => reallyExit(1));
const post = worker.postMessage.bind(worker);
