// Writes the state of a Node session into files, and changes nothing in the session.
//
// Values are cloned as structuredClone() does it, functions and classes are saved by their source.
'use strict';
const fs = require('node:fs');
const { Session } = require('node:inspector');
const { builtinModules } = require('node:module');
const { types } = require('node:util');
const v8 = require('node:v8');
const vm = require('node:vm');

const FORMAT = 1;
const MAX_WHY = 300;
// Enumerable globals that Node has itself.
const OWN = new Set(['global', 'clearImmediate', 'setImmediate', 'clearInterval', 'clearTimeout',
  'setInterval', 'setTimeout', 'queueMicrotask', 'structuredClone', 'atob', 'btoa', 'performance',
  'fetch', 'navigator', 'crypto', 'localStorage', 'sessionStorage', '__filename', '__dirname',
  'module', 'exports', 'require']);
// Modules that warn when they are loaded, or that few versions have.
const UNASKED = new Set(['punycode', 'sys', 'domain', 'sqlite', 'trace_events', 'wasi', 'test']);

// Prototypes of what a structured clone makes again as it was.
const CLONED = new Set([null, Object.prototype, Array.prototype, Map.prototype, Set.prototype,
  Date.prototype, RegExp.prototype, Boolean.prototype, Number.prototype, String.prototype,
  BigInt.prototype, ArrayBuffer.prototype, DataView.prototype, Buffer.prototype,
  ...[Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError,
    Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array,
    Float32Array, Float64Array, BigInt64Array, BigUint64Array].map((kind) => kind.prototype)]);

const words = (error) => {
  try {
    return String(error?.message ?? error).slice(0, MAX_WHY) || 'it cannot be cloned';
  } catch {
    return 'it cannot be cloned';
  }
};

// Why a clone of a value would be something else than the value; empty if it would not.
const whyNotCloned = (value) => {
  const waiting = [value], seen = new Set();
  while (waiting.length) {
    const each = waiting.pop();
    if (typeof each === 'function') return 'it has a function in it';
    if (typeof each === 'symbol') return 'it has a symbol in it';
    if (typeof each !== 'object' || each === null || seen.has(each)) continue;
    seen.add(each);
    if (types.isProxy(each)) return 'it has a proxy in it';
    if (types.isPromise(each)) return 'it has a promise in it';
    if (types.isSharedArrayBuffer(each)) return 'it has shared memory in it';
    const prototype = Object.getPrototypeOf(each);
    if (!CLONED.has(prototype)) {
      const kind = describePrototype(prototype);
      return `it has an object of ${kind} in it, which would lose its methods`;
    }
    if (ArrayBuffer.isView(each) || types.isArrayBuffer(each)) continue;
    if (types.isMap(each)) for (const [name, item] of each) waiting.push(name, item);
    if (types.isSet(each)) for (const item of each) waiting.push(item);
    for (const name of Reflect.ownKeys(each)) {
      const property = Object.getOwnPropertyDescriptor(each, name);
      if (!property.enumerable) continue;
      if (typeof name === 'symbol') return 'it has a property that is called by a symbol';
      if (!('value' in property)) return `it has a getter or setter, ${name}`;
      waiting.push(property.value);
    }
  }
  return '';
};

const describePrototype = (prototype) => {
  const maker = Object.getOwnPropertyDescriptor(prototype, 'constructor')?.value;
  const name = typeof maker === 'function'
    ? Object.getOwnPropertyDescriptor(maker, 'name')?.value : undefined;
  return typeof name === 'string' && name ? `class ${name}` : 'another class';
};

// Names of variables, and how the inspector sees the functions among them.
class Globals {
  constructor() {
    this.session = new Session();
    this.session.connect();
  }

  close() {
    this.session.disconnect();
  }

  ask(method, params) {
    let answer;
    this.session.post(method, params, (error, result) => { answer = error ? undefined : result; });
    return answer;
  }

  names() {
    const lexical = this.ask('Runtime.globalLexicalScopeNames', {})?.names ?? [];
    const properties = Object.keys(globalThis).filter((name) => !OWN.has(name)
      && 'value' in Object.getOwnPropertyDescriptor(globalThis, name));
    return [...new Set([...properties, ...lexical])].filter((name) => isName(name));
  }

  // Whether a function uses variables of another function, which made it.
  isClosure(name) {
    const found = this.ask('Runtime.evaluate', { expression: name })?.result?.objectId;
    if (found === undefined) return false;
    const { internalProperties = [] } = this.ask('Runtime.getProperties',
      { objectId: found, ownProperties: true }) ?? {};
    const scopes = internalProperties.find((each) => each.name === '[[Scopes]]')?.value?.objectId;
    if (scopes === undefined) return false;
    const { result = [] } = this.ask('Runtime.getProperties',
      { objectId: scopes, ownProperties: true }) ?? {};
    return result.some(({ value }) => /^(Closure|Block|Catch|With|Local)/.test(
      value?.description ?? ''));
  }
}

const isName = (name) => /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u.test(name);

// Where modules have a value: { module, property }.
const findInModules = (value) => {
  for (const [file, { exports }] of Object.entries(require.cache)) {
    if (exports === value && file !== __filename) return { module: file };
  }
  for (const name of builtinModules) {
    if (name.startsWith('_') || UNASKED.has(name)) continue;
    const found = require(name);
    if (found === value) return { module: name };
    if (types.isModuleNamespaceObject(value) && value.default === found) return { module: name };
    for (const property of Object.keys(found)) {
      const { value: one } = Object.getOwnPropertyDescriptor(found, property);
      if (one === value) return { module: name, property };
    }
  }
  return undefined;
};

const isExpression = (text) => {
  try {
    return new vm.Script(`(${text}\n)`) !== undefined;
  } catch {
    return false;
  }
};

// The source that makes a function or class again, or why there is none.
const sourceOf = (name, value, globals) => {
  const text = Function.prototype.toString.call(value);
  if (/\{\s*\[native code\]\s*\}\s*$/.test(text)) return { why: 'its source is not known' };
  if (globals.isClosure(name)) {
    return { why: 'it uses variables of the function that made it' };
  }
  if (!isExpression(text)) return { why: 'its source is that of a method' };
  const isClass = /^class\b/.test(text);
  if (!isClass && (Object.keys(value).length
    || Reflect.ownKeys(value.prototype ?? {}).some((key) => key !== 'constructor'))) {
    return { why: 'it has properties, and only its source can be saved' };
  }
  const [, called] = /^(?:async\s+)?function\s*\*?\s*([^\s(]*)/.exec(text) ?? [];
  const declares = called === name;
  return { source: declares ? text : `globalThis.${name} = (${text}\n);` };
};

exports.save = (directory) => {
  const options = JSON.parse(fs.readFileSync(`${directory}/options.json`, 'utf8'));
  const state = {
    format: FORMAT, version: process.versions.node, cwd: '/workspace', environ: {}, imports: {},
    aliases: {}, definitions: [], groups: [], failed: [],
  };
  try {
    state.cwd = process.cwd();
  } catch {}
  for (const [name, value] of Object.entries(process.env)) {
    if (!options.not_saved.includes(name)) state.environ[name] = value;
  }
  const values = {}, functions = new Map(), globals = new Globals();
  const fail = (name, why) => state.failed.push({ name, why: why.slice(0, MAX_WHY), again: null });
  try {
    for (const name of globals.names()) {
      let value;
      try {
        value = (0, eval)(name);
      } catch (error) {  // it was declared, and never had a value
        fail(name, words(error));
        continue;
      }
      let why = typeof value === 'function' ? '' : whyNotCloned(value);
      if (typeof value !== 'function' && !why) {
        try {
          v8.serialize(value);
          values[name] = value;
          continue;
        } catch (error) {
          why = words(error);
        }
      }
      const module = findInModules(value);
      if (module) { state.imports[name] = module; continue; }
      if (typeof value !== 'function') { fail(name, why); continue; }
      if (functions.has(value)) { state.aliases[name] = functions.get(value); continue; }
      const { source, why: reason } = sourceOf(name, value, globals);
      if (source === undefined) { fail(name, reason); continue; }
      functions.set(value, name);
      state.definitions.push({ name, source });
    }
  } finally {
    globals.close();
  }
  // All together, so that objects that they share are shared again.
  fs.writeFileSync(`${directory}/values`, v8.serialize(values));
  if (Object.keys(values).length) state.groups.push({ names: Object.keys(values) });
  fs.writeFileSync(`${directory}/state.json.new`, JSON.stringify(state));
  fs.renameSync(`${directory}/state.json.new`, `${directory}/state.json`);
};
