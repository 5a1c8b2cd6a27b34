// Takes messages, first of all from the control socket itself.
const onMessage = (message) => {
  // An interrupt ended code that runs at exit, such as an endless handler, and the exit with it:
  // without the inspector, which has been let go, nothing more can be run.
  if (exiting) reallyExit(process.exitCode ?? 0);
  if (message.type === 'run') {
    try {
      run(message);
    } catch (problem) {
      try { complain(describe(problem)); } catch {}
      finish(message.id, message.token, 1);
    }
  }
  else if (message.type === 'complete') {
    try {
      complete(message);
    } catch {
      post({ type: 'names', id: message.id, steps: [''], prefix: message.prefix, names: '' });
    }
  } else if (message.type === 'abandon') {
    if (running === message.id) clearImmediate(turn);
    if (running === message.id) {
      running = 0;
      closeInput();
      forsake();
    }
    post({ id: message.id, exit_code: 130 });
  }
};
// Code may have replaced emitters' methods, or what they call, such as `listener.apply`.
const { emit } = worker;
worker.emit = (name, value) => name === 'message' ? onMessage(value)
  : apply(emit, worker, [name, value]);

// The worker takes as long to start as all else. Until there is something to listen for besides,
// this thread can wait for the first message itself.
const readWhole = (size) => {
  const data = Buffer.alloc(size);
  for (let done = 0; done < size;) {
    const count = readSync(CONTROL_FD, data, done, size - done);
    if (count === 0) reallyExit(0);
    done += count;
  }
  return data;
};
send({ type: 'begun' });
const first = JSON.parse(readWhole(readWhole(4).readUInt32BE(0)).toString());
const compiles = (code) => {
  try {
    return new (require('node:vm').Script)('(async () => {' + code + '\n})') !== undefined;
  } catch {
    return false;
  }
};
const isTaken = first.type === 'run' && !first.stdin && !needsRewriting(first, true)
  && compiles(first.code);
post({ type: 'first', first, isTaken });
if (isTaken) {
  state[PHASE] = RUNNING;
  onMessage(prepare(require('node:vm'), first));
}
