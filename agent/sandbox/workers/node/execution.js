// Failures that no code waits for, unless code listens for them itself. A rejection while an
// execution runs counts as its own. A one-shot ends with the first one, as a program does.
let running = 0, failed = false, turn, oneShot;
const listenerCount = process.listenerCount.bind(process);
const tellUncaught = (error) => {
  complain(describe(error));
  if (!oneShot) return;
  process.exitCode ||= 1;
  if (!exiting) exit();
};
process.on('uncaughtException', (error) => {
  if (listenerCount('uncaughtException') === 1) tellUncaught(error);
});
process.on('unhandledRejection', (error) => {
  if (listenerCount('unhandledRejection') > 1) return;
  if (listenerCount('uncaughtException') > 1) {
    process.emit('uncaughtException', error, 'unhandledRejection');
    return;
  }
  failed = true;
  tellUncaught(error);
});

// The value behind an inspector's reference. It is handed to a function that is known to the
// inspector from the beginning, and in no place where code could find it.
let taken;
const taker = (value) => { taken = value; };
let takerId;
const introduceTaker = () => {
  const key = '__nsm_taker_' + pid;
  defineProperty(globalThis, key, { __proto__: null, value: taker, configurable: true });
  ask('Runtime.evaluate', { expression: key }, (error, { result }) => {
    takerId = result.objectId;
  });
  deleteProperty(globalThis, key);
};
introduceTaker();
const take = (remote) => {
  if (!hasOwn(remote, 'objectId')) {
    if (hasOwn(remote, 'unserializableValue')) return evaluate(remote.unserializableValue);
    return hasOwn(remote, 'value') ? remote.value : undefined;
  }
  taken = undefined;
  ask('Runtime.callFunctionOn', {
    functionDeclaration: 'function (value) { this(value); }',
    objectId: takerId, arguments: [{ objectId: remote.objectId }],
  }, () => {});
  const value = taken;
  taken = undefined;
  return value;
};

const describeSyntax = (details, lines, name) => {
  let line = details.lineNumber, column = details.columnNumber;
  if (line >= lines.length) {  // the end was not expected
    line = lines.length - 1;
    column = lines[line].length;
  }
  let message = details.exception.description || '';
  const end = apply(indexOf, message, ['\n']);
  if (end >= 0) message = apply(slice, message, [0, end]);
  return name + ':' + (line + 1) + '\n' + lines[line] + '\n' + apply(repeat, ' ', [column]) +
    '^\n' + message + '\n';
};

// Whether the inspector still evaluates.
const isUsable = () => {
  let usable = false;
  ask('Runtime.evaluate', { expression: '0' }, (error) => { usable = !error; });
  return usable;
};

const finish = (id, token, exit_code, shown, note) => {
  running = 0;
  const data = shown !== undefined && { __proto__: null, 'text/plain': shown };
  const itself = compareExchange(state, PHASE, RUNNING, ANSWERED) === RUNNING;
  closeInput();
  const tell = itself ? send : post;
  if (data) tell({ __proto__: null, type: 'display', data });
  if (note) tell({ __proto__: null, type: 'note', text: note });
  if (itself) send({ __proto__: null, type: 'done', id, token, exit_code });
  else post({ id, exit_code });
};

// What keeps the event loop going besides the runner, and the names that people have for it.
const KINDS = {
  __proto__: null, Timeout: 'timer', ProcessWrap: 'child process', TCPServerWrap: 'server',
  PipeServerWrap: 'server', TCPSocketWrap: 'connection', UDPWrap: 'connection',
  FSEventWrap: 'file watcher', StatWatcher: 'file watcher', FSReqCallback: 'request',
  FSReqPromise: 'request', GetAddrInfoReqWrap: 'request',
};
const { getActiveResourcesInfo, nextTick, off, once } = process;
const countResources = () => {
  const counts = { __proto__: null };
  const active = apply(getActiveResourcesInfo, process, []);
  for (let i = 0; i < active.length; i++) {
    const kind = KINDS[active[i]];
    if (kind !== undefined) counts[kind] = (counts[kind] ?? 0) + 1;
  }
  return counts;
};
const describeUnfinished = (before) => {
  const now = countResources(), kinds = ownKeys(now);
  let text = '', sum = 0;
  for (let i = 0; i < kinds.length; i++) {
    const kind = kinds[i], count = now[kind] - (before[kind] ?? 0);
    if (count <= 0) continue;
    sum += count;
    const ending = count === 1 ? '' : kind === 'child process' ? 'es' : 's';
    text += (text && ' and ') + count + ' ' + kind + ending;
  }
  return text && text + (sum === 1 ? ' is still under way; its' : ' are still under way; their') +
    ' output comes with the next call';
};

const NO_INPUT = 'the code awaits standard input, which is empty: put the input into the code\n';
let awaiting;  // the running execution of a session
// Nothing keeps the event loop going: no timer, thread or connection, and the listener may not.
const endStuck = () => {
  worker.ref();
  if (awaiting === undefined || running !== awaiting.id) return;
  if (load(state, PHASE) !== RUNNING) return;  // an interrupt that has begun is answered
  const { id, token } = awaiting;
  complain(NO_INPUT);
  finish(id, token, 13);  // as Node exits where an await is not settled
  forsake();
};
const endIfStuck = () => {
  if (awaiting === undefined || running !== awaiting.id) return;
  apply(off, process, ['beforeExit', endStuck]);
  apply(once, process, ['beforeExit', endStuck]);
  awaiting.unreferenced = true;
  worker.unref();
};

// The exit code that code itself has asked for.
const takeExitCode = () => {
  try {
    const wanted = Number(process.exitCode ?? 0) & 255;
    if (wanted !== 0) process.exitCode = undefined;
    return wanted;
  } catch {  // it is a property that code can replace
    return 0;
  }
};

// The names whose earlier declaration V8 would not let be replaced.
const findConflicts = ({ lexical, vars }) => {
  const conflicts = [];
  for (let i = 0; i < lexical.length; i++) {
    const found = getOwnPropertyDescriptor(global_, lexical[i]);
    if (found?.configurable === false && found.writable) {
      conflicts[conflicts.length] = lexical[i];
    }
  }
  const known = vars.length ? lexicalNames() : [];
  for (let i = 0; i < vars.length; i++) {
    for (let j = 0; j < known.length; j++) {
      if (known[j] === vars[i]) conflicts[conflicts.length] = vars[i];
    }
  }
  return conflicts;
};

const { execPath } = process;
let hasArguments = false;
// What a script finds of its name and arguments, until the next execution.
const setArguments = (argv) => {
  if (!argv && !hasArguments) return;
  hasArguments = Boolean(argv);
  script = argv?.[0][0] === '/' ? argv[0] : undefined;
  process.argv = [execPath];
  deleteProperty(globalThis, '__filename');
  if (!argv) return;
  for (let at = 0; at < argv.length; at++) process.argv[at + 1] = argv[at];
  globalThis.__filename = argv[0];
};

const run = ({
  id, token, one_shot, stdin, argv, names, failure, hoisted, expression, lines,
}) => {
  if (load(state, INTERRUPTED) === id) { finish(id, token, 130); return; }
  const name = '<exec-' + id + '>';
  if (failure) {
    complain(describeSyntax(failure, lines, name));
    finish(id, token, 1);
    return;
  }
  const conflicts = names ? findConflicts(names) : [];
  if (conflicts.length) { post({ type: 'conflicts', id, names: conflicts }); return; }
  running = id;
  failed = false;
  if (stdin) openInput(stdin);
  try { setArguments(argv); } catch {}  // code has frozen what they are in
  if (one_shot) beginOneShot(id, token);
  else takeExitCode();  // of what ran between executions
  const before = one_shot || countResources();
  if (emptyStream?.readableEnded) emptyStream = undefined;
  awaiting = one_shot ? undefined : { id, token };
  const takeOutcome = (error, outcome) => {
    if (running !== id || exiting) return;  // abandoned while it awaited, or overtaken
    let exit_code = 0, shown;
    try {
      // An evaluation that was ended is "terminated", and since Node 22 an "Internal error". So is
      // one after Node believed that process.kill(-1) would end it, and tore down.
      if (error && isUsable()) exit_code = 130;
      else if (error) {
        complain('the interpreter cannot go on: ' + error.message + '\n');
        reallyExit(1);
      } else if (hasOwn(outcome, 'exceptionDetails')) {
        exit_code = 1;
        const details = outcome.exceptionDetails;
        const thrown = take(details.exception);
        const isSyntax = details.exception.className === 'SyntaxError'
          && !apply(includes, details.exception.description || '', [' <exec-'])
          && !apply(includes, details.exception.description || '', ['(<exec-']);
        if (isSyntax) complain(describeSyntax(details, lines, name));
        else if (oneShot) {
          // Node is to find out that nobody has caught it: code may listen for that.
          oneShot.settled = true;
          nextTick(() => { throw thrown; });
          return;
        } else complain(describe(thrown));
      } else if (awaited === undefined && hasOwn(outcome.result, 'subtype')
        && outcome.result.subtype === 'promise') {
        // The promise that is the value is awaited too.
        awaited = take(outcome.result);
        if (oneShot) oneShot.value = awaited;
        const { objectId: promiseObjectId } = outcome.result;
        ask('Runtime.awaitPromise', { promiseObjectId }, takeOutcome);
        return;
      } else {
        const value = take(outcome.result);
        if (value !== undefined) shown = show(value);
      }
    } catch (problem) {
      exit_code = 1;
      try { complain(describe(problem)); } catch {}
    }
    ask('Runtime.releaseObjectGroup', { objectGroup: 'exec' });
    if (oneShot && exit_code !== 130) {
      oneShot.settled = true;
      oneShot.shown = shown;
      if (exit_code) exit(exit_code);
      return;
    }
    // One turn of the loop later rejections that nobody handles are known. Node never gets over
    // an interrupt in the second of two callbacks of one turn, so there is but one of ours.
    clearImmediate(turn);
    // Not else: code may have closed the listener's port, and this would keep Node from ending.
    if (awaiting?.unreferenced) worker.ref();
    awaiting = undefined;
    turn = setImmediate(() => {
      if (running !== id) return;
      const wanted = takeExitCode();
      const note = one_shot ? '' : describeUnfinished(before);
      finish(id, token, exit_code || (failed ? 1 : wanted), shown, note);
    });
  };
  let awaited, fails = false;
  if (hoisted) {
    ask('Runtime.evaluate', { expression: hoisted, replMode: true }, (error, outcome) => {
      fails = error || hasOwn(outcome, 'exceptionDetails');
      if (fails) takeOutcome(error, outcome);
    });
  }
  if (fails) return;
  ask('Runtime.evaluate', {
    expression, replMode: true, awaitPromise: true, objectGroup: 'exec',
  }, takeOutcome);
};

// A one-shot is over when Node would exit, since nothing keeps its event loop going any more: the
// listener may not either. What Node is told last is the execution's end.
const beginOneShot = (id, token) => {
  oneShot = { id, token, settled: false };
  worker.unref();
  const { emit } = process;
  let last;
  process.emit = function (name) {
    if (name === 'exit' && last === 'beforeExit') oneShot.ranDry = true;
    last = name;
    // An interrupt that has begun needs the loop to be answered.
    if (load(state, PHASE) === INTERRUPTING) worker.ref();
    const heard = apply(emit, this, arguments);
    if (name === 'exit' && running === id) {
      finish(id, token, Number(process.exitCode ?? 0) & 255, oneShot.shown);
    }
    return heard;
  };
};
const concludeOneShot = () => {
  if (!oneShot?.ranDry || oneShot.settled) return;
  if (hasOwn(oneShot, 'value')) oneShot.shown = show(oneShot.value);
  else if (process.exitCode === undefined) {
    complain('Warning: Detected unsettled top-level await\n');
    if (emptyStream?.readableEnded) complain(NO_INPUT);
    process.exitCode = 13;
  }
};

// The inspector tells its session when a promise that an evaluation awaits is collected, and Node
// 22 aborts over that. A session that is gone is not told.
const forsake = () => {
  const next = new Session();
  next.connect();
  session.disconnect();
  session = next;
  introduceTaker();
};
