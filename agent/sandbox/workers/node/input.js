// Standard input of an execution. Descriptor 0 is for child processes and for reads that wait;
// process.stdin has a descriptor of its own, since Node makes that one non-blocking. Between
// executions both are as at the start: empty.
//
// A file gets the lowest number that is free, and Node has no dup2(2). Nothing else may open files
// meanwhile: our worker is up by then, and code's asynchronous calls of before are over, as a rule.
//
// What awaits a line of empty input waits for ever: readline closes at the end of its input, and
// settles no question. Then `endIfStuck` ends the code once nothing else can go on.
let emptyStream;
const emptyInput = {
  configurable: true, enumerable: true,
  get: () => emptyStream ??= new ReadStream('', { fd: 0, autoClose: false })
    .once('end', () => endIfStuck()),
};
defineProperty(process, 'stdin', emptyInput);
let isTakenAway = false;
const replaceInput = (path) => {
  if (!isTakenAway) {
    try { closeSync(0); } catch {}
    isTakenAway = openSync(path) !== 0;
  }
  if (isTakenAway) {
    throw new Error('standard input cannot be opened: another file has taken its descriptor; ' +
      'reset the session');
  }
};
let input;
const openInput = (path) => {
  replaceInput(path);
  const own = input = { stream: undefined };
  defineProperty(process, 'stdin', {
    configurable: true, enumerable: true, get: () => own.stream ??= makeInput(path),
  });
};
// As Node makes its own.
const makeInput = (path) => {
  const stream = new Socket({ fd: openSync(path), readable: true, writable: false, manualStart: true });
  stream._writableState.ended = true;
  stream.fd = 0;
  stream.on('pause', () => {  // so that it does not keep the event loop going
    if (!stream._handle?.reading) return;
    stream._handle.reading = stream._readableState.reading = false;
    stream._handle.readStop();
  });
  return stream;
};
const closeInput = () => {
  if (input === undefined) return;
  const { stream } = input;
  input = undefined;
  // Whoever still waits for input waits for ever: its end would have the code go on.
  const handle = stream?._handle;
  if (handle) {
    stream._handle = null;
    handle.close();
  }
  defineProperty(process, 'stdin', emptyInput);
  try { replaceInput('/dev/null'); } catch {}  // the next execution that has input says so
};
