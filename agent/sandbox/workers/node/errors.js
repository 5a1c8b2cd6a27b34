// No stack shows the runner's frames, or the inspector's that it calls code by. Code may replace
// this function, as it may Node's own.
defineProperty(Error, 'prepareStackTrace', {
  configurable: true, writable: true, enumerable: false,
  value: (error, sites) => {
    let text;
    try {
      const { name, code, message } = error;
      const isNodes = typeof code === 'string' && apply(startsWith, code, ['ERR_']);
      text = isNodes ? name + ' [' + code + ']: ' + message : apply(errorText, error, []);
    } catch {
      text = '<error>';
    }
    let end = sites.length;
    for (let i = 0; i < sites.length; i++) {
      if (sites[i].getFileName() === 'node:inspector') end = i;
    }
    for (let i = 0; i < end; i++) {
      const file = sites[i].getFileName();
      if (file !== '[eval]' && file !== 'node:inspector') text += '\n    at ' + sites[i];
    }
    return text;
  },
});

// Takes the runner's frames, and the inspector's above them, off the stacks of an error.
const RUNNER = /(\n    at [^\n]*\(node:inspector:[^\n]*)*\n    at ([^\n]*\()?\[eval\]:\d[^]*$/;
const DEEP = /\n    at Session\.post \(node:inspector:.*$/;
const trim = (error, depth) => {
  if (depth > 10 || !isNativeError(error)) return;
  try {
    error.stack = error.stack.replace(RUNNER, '').replace(DEEP, '');
    trim(error.cause, depth + 1);
    for (const other of error.errors ?? []) trim(other, depth + 1);
  } catch {}
};
const describe = (error) => {
  trim(error, 0);
  try {
    return 'Uncaught ' + inspect(error) + '\n';
  } catch {
    const told = isNativeError(error) ? getOwnPropertyDescriptor(error, 'message')?.value : '';
    return 'Uncaught ' + (typeof told === 'string' ? told : '') +
      '\n(showing it failed: its own code, or Error.prepareStackTrace, threw)\n';
  }
};
const { from: encode } = Buffer;
const complain = (text) => writeAll(2, encode(text));
