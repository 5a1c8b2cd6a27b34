// One context of JavaScript: evaluates code piece by piece, and tells what comes of it.
'use strict';
const fs = require('fs');
const inspector = require('inspector');
const path = require('path');
const util = require('util');
const { createRequire } = require('module');

const PIECE = 3000;
const idle = Number(process.argv[1]) * 1000;
let token = '';
let count = 0;

const write = (descriptor, text) => {
  let data = Buffer.from(text);
  while (data.length) {
    try {
      data = data.subarray(fs.writeSync(descriptor, data));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
};
const tell = (event) => {
  // Only ASCII, so that a piece of a character is never split.
  const data = JSON.stringify(event).replace(/[\u0080-\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
  for (let start = 0; start < data.length; start += PIECE) {
    const end = start + PIECE >= data.length ? '.' : '+';
    write(1, `\x1e${token}${end}${data.slice(start, start + PIECE)}\n`);
  }
};

// Streams to pipes are synchronous, which their documentation promises for Linux.
globalThis.require = createRequire(path.join(process.cwd(), 'cell.js'));
let kept;
Object.defineProperty(globalThis, '__nsmKeep', { value: (value) => { kept = value; } });
const session = new inspector.Session();
session.connect();
const ask = (method, params) => new Promise((resolve, reject) => {
  session.post(method, params, (error, answer) => (error ? reject(error) : resolve(answer)));
});

const valueOf = async (result) => {
  if (!result.objectId) {
    if (result.unserializableValue !== undefined) return globalThis.eval(result.unserializableValue);
    return result.value;
  }
  await ask('Runtime.callFunctionOn', {
    objectId: result.objectId,
    functionDeclaration: 'function () { __nsmKeep(this); }',
  });
  const value = kept;
  kept = undefined;
  return value;
};

const fail = (value) => {
  const isError = value instanceof Error;
  tell({
    type: 'error',
    name: isError ? String(value.name) : 'Error',
    value: isError ? String(value.message) : util.inspect(value),
    traceback: isError ? String(value.stack).split('\n    at Session.post')[0] : util.inspect(value),
  });
};

const run = async (request) => {
  token = request.token;
  count += 1;
  const before = {};
  for (const [name, value] of Object.entries(request.env_vars || {})) {
    before[name] = process.env[name];
    process.env[name] = value;
  }
  try {
    const answer = await ask('Runtime.evaluate', {
      expression: request.code, replMode: true, awaitPromise: true,
    });
    if (answer.exceptionDetails) {
      const { exception, text } = answer.exceptionDetails;
      fail(exception ? await valueOf(exception) : new Error(text));
    } else {
      const value = await valueOf(answer.result);
      if (value !== undefined) {
        tell({ type: 'result', text: util.inspect(value), is_main_result: true });
      }
    }
  } catch (error) {
    fail(error);
  }
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  tell({ type: 'number_of_executions', execution_count: count });
  tell({ type: 'end' });
  write(2, `\x1e${token}.{}\n`);
};

process.on('uncaughtException', (error) => { console.error(error); });
process.on('unhandledRejection', (error) => { console.error(error); });
let text = '';
let timer = setTimeout(() => process.exit(0), idle);
let queue = Promise.resolve();
process.stdin.setEncoding('utf8');
process.stdin.on('data', (data) => {
  clearTimeout(timer);
  timer = setTimeout(() => process.exit(0), idle);
  text += data;
  for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n')) {
    const request = JSON.parse(text.slice(0, end));
    text = text.slice(end + 1);
    queue = queue.then(() => run(request));
  }
});
process.stdin.on('end', () => process.exit(0));
