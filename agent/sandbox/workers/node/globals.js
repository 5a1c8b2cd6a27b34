// What code may replace, or hide behind a let of that name, is taken before there is any.
const {
  Array, ArrayBuffer, Atomics, BigInt, Boolean, Buffer, Error, Int32Array, JSON, Math, Number,
  Object, Reflect, Set, SharedArrayBuffer, String, Symbol, SyntaxError, TypeError, clearImmediate,
  eval: evaluate, process, setImmediate,
} = globalThis;
const {
  apply, defineProperty, deleteProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys,
} = Reflect;
const { compareExchange, load, wait } = Atomics;
const fs = require('node:fs');
const inspector = require('node:inspector');
const { ReadStream, closeSync, openSync, readFileSync, readSync } = fs;
const { hasOwn } = Object;
const { toString: errorText } = Error.prototype;
const { includes, indexOf, repeat, slice, startsWith } = String.prototype;
const { constants: { signals: { SIGSTOP, SIGTTOU } } } = require('node:os');
const { inspect, types: { isNativeError, isProxy } } = require('node:util');
const EventEmitter = require('node:events');
const { Writable } = require('node:stream');
const { Worker } = require('node:worker_threads');
const Module = require('node:module');
const { Socket } = require('node:net');
const { builtinModules, createRequire } = Module;
const { pathToFileURL } = require('node:url');

// Shared with the worker. INTERRUPTED: number of an execution that must not begin any more. PHASE:
// whether the main thread tells an execution's end itself, which saves a hop, or the worker, which
// has begun to interrupt it. LOCK: held by the thread that writes to the control socket.
const shared = {
  CONTROL_FD: 3, INTERRUPTED: 0, PHASE: 1, LOCK: 2, ANSWERED: 0, RUNNING: 1, INTERRUPTING: 2,
  state: new Int32Array(new SharedArrayBuffer(12)),
};
const { CONTROL_FD, INTERRUPTED, PHASE, ANSWERED, RUNNING, INTERRUPTING, state } = shared;
