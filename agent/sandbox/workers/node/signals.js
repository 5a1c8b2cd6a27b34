// Where code signals its own process, Node expects it to end and takes the inspector down, also
// for signals that are survived. It does not recognize the process by another thread's number.
const { pid, _kill: kill } = process;
const idle = new Int32Array(new SharedArrayBuffer(4));
const thread = fs.readdirSync('/proc/self/task').map(Number).find((id) => id !== pid) ?? pid;
const STATUS = '/proc/self/status';
const isPending = (signal) => {
  const text = readFileSync(STATUS, 'latin1');
  const at = apply(indexOf, text, ['ShdPnd:\t']) + 8;
  const low = evaluate('0x' + apply(slice, text, [at + 8, at + 16]));
  return ((low >>> (signal - 1)) & 1) === 1;
};
process._kill = (target, signal) => {
  if (target !== pid || !(signal > 0)) return kill(target, signal);
  const outcome = kill(thread, signal);
  // A stop comes when that thread gets to run: this one must not answer before.
  const stops = signal >= SIGSTOP && signal <= SIGTTOU;
  for (let tries = 0; stops && tries < 100 && isPending(signal); tries++) wait(idle, 0, 0, 1);
  return outcome;
};
process.argv.length = 1;
process.execArgv = [];
delete process._eval;
