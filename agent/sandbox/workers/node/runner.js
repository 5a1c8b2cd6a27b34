'use strict';
(() => {
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
const { readFileSync, readSync } = fs;
const { hasOwn } = Object;
const { toString: errorText } = Error.prototype;
const { includes, indexOf, repeat, slice, startsWith } = String.prototype;
const { constants: { signals: { SIGSTOP, SIGTTOU } } } = require('node:os');
const { inspect, types: { isNativeError, isProxy } } = require('node:util');
const EventEmitter = require('node:events');
const { Writable } = require('node:stream');
const { Worker } = require('node:worker_threads');
const Module = require('node:module');
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

// What the worker answers about texts; its source is put into the worker's.
const questions = (inspector) => {
  // What V8's parser says of a text, here where no code runs: { message, at } of its error, if any.
  const parse = (text) => {
    const own = new inspector.Session();
    own.connect();
    let failure = { message: 'not parsed' };
    own.post('Runtime.enable');
    const request = { expression: text, sourceURL: '', persistScript: false };
    own.post('Runtime.compileScript', request, (error, { exceptionDetails: details } = {}) => {
      if (error) return;
      failure = details && {
        message: details.exception.description || '',
        at: text.split('\n').slice(0, details.lineNumber)
          .reduce((sum, line) => sum + line.length + 1, details.columnNumber),
      };
    });
    own.disconnect();
    return failure;
  };
  // An unfinished comment, or a string whose last line ends in a backslash.
  const OPEN = /^(\/\*|(["'])(\\[^]|(?!\2)[^\\\n])*\\\n?$)/;
  const judge = (text) => {
    const failure = parse(text);
    if (!failure) return 'complete';
    const { message, at } = failure;
    if (/Unexpected end of input|Unterminated template/.test(message)) return 'incomplete';
    if (/call stack|not parsed/.test(message)) return '';
    if (/Missing } in template/.test(message)) {
      return /in template/.test(parse(text + '}`')?.message) ? 'invalid' : 'incomplete';
    }
    if (/Missing catch or finally/.test(message)) {
      return parse(text + ' finally {}') ? 'invalid' : 'incomplete';
    }
    if (/missing \) after/.test(message)) {
      return /end of input/.test(parse(text + ',')?.message) ? 'incomplete' : 'invalid';
    }
    if (/Invalid or unexpected token/.test(message) && OPEN.test(text.slice(at))) {
      return 'incomplete';
    }
    return 'invalid';
  };
  // Whether a text is whole. Outside of functions await is an operator like void, in a session.
  const check = (text) => {
    let status = judge(text);
    if (status === 'invalid' && /\bawait\b/.test(text)) {
      status = judge(text.replace(/\bfor(\s+)await\b/g, 'for$1     ')
        .replace(/\bawait\b/g, 'void '));
    }
    if (status !== 'complete' && /^\s*\{/.test(text)) {
      const value = judge('(' + text + '\n)');
      if (value === 'complete' || (status === 'invalid' && judge('(' + text) === 'incomplete')) {
        status = value === 'complete' ? value : 'incomplete';
      }
    }
    const failure = status === 'incomplete' ? parse(text + '\u0001') : null;
    return { status, in_text: /end of input/.test(failure?.message) };
  };
  const KEYWORDS = ('async await break case catch class const continue debugger default delete ' +
    'do else export extends false finally for function if import in instanceof let new null of ' +
    'return static super switch this throw true try typeof var void while with yield').split(' ');
  const NAME = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u;
  const PATH =
    /((?:[\p{ID_Start}$_][\p{ID_Continue}$]*\s*\??\.\s*)*)([\p{ID_Start}$_][\p{ID_Continue}$]*)?$/u;
  const TEXTS = new RegExp([
    /\/\/[^\n]*/, /\/\*(?:[^]*?(\*\/)|[^]*)/, /(["'])(?:\\[^]|(?!\2)[^\\\n])*(\2)?/,
    /`(?:\\[^]|[^`\\])*(`)?/,
  ].map(({ source }) => source).join('|'), 'g');
  // Whether a text ends in a comment, a string, or the plain part of a template.
  const inText = (text) => {
    for (const { 0: found, 1: comment, 3: string, 4: template, index } of text.matchAll(TEXTS)) {
      if (index + found.length === text.length && !(comment ?? string ?? template)) {
        return found[0] !== '`' || found.lastIndexOf('${') <= found.lastIndexOf('}');
      }
    }
    return false;
  };
  // The names before a text's end: `steps` lead to an object, `prefix` begins a name of its.
  const dissect = (before) => {
    const line = before.slice(-1000).split('\n').pop();
    const [matched, path, prefix = ''] = PATH.exec(line);
    const preceding = line[line.length - matched.length - 1] ?? '';
    const ofOther = path ? /[)\]}"'`.#\p{Nd}]/u : /[.#\p{Nd}]/u;  // more than a path of names
    if (inText(before) || ofOther.test(preceding)) return null;
    const steps = path.split('.').map((name) => name.replace('?', '').trim()).slice(0, -1);
    return { steps, prefix };
  };
  const choose = ({ steps, prefix }, names) => {
    const all = new Set(steps.length ? names : [...KEYWORDS, ...names]);
    const fits = (name) => name.startsWith(prefix) && NAME.test(name);
    return { prefix, matches: [...all].filter(fits).sort().slice(0, 500) };
  };
  return { check, dissect, choose };
};

// Replaces `import` before `(`, outside of strings, comments and regular expressions.
const rewriteImports = (code) => {
  if (!/\bimport\b/.test(code)) return code;
  const word = /[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/uy;
  const call = /(?:\s|\/\*[^]*?\*\/|\/\/[^\n]*\n)*\(/y;
  const before = new Set(['return', 'typeof', 'case', 'in', 'of', 'do', 'else', 'void', 'delete',
    'throw', 'new', 'instanceof', 'await', 'yield']);
  const nesting = [], places = new Set();
  let i = 0, value = false, dot = false, called = -1;
  const skipTemplate = () => {
    for (; i < code.length; i++) {
      if (code[i] === '\\') i++;
      else if (code[i] === '`') { i++; value = true; return; }
      else if (code[i] === '$' && code[i + 1] === '{') {
        i += 2; nesting.push('`'); value = false; return;
      }
    }
  };
  while (i < code.length) {
    const c = code[i];
    if (/\s/.test(c)) { i++; continue; }
    if (c === '/' && code[i + 1] === '/') {
      i = code.indexOf('\n', i);
      if (i < 0) break;
      continue;
    }
    if (c === '/' && code[i + 1] === '*') {
      i = code.indexOf('*/', i + 2);
      if (i < 0) break;
      i += 2;
      continue;
    }
    const afterDot = dot;
    dot = c === '.' && code[i + 1] !== '.';
    if (c === '"' || c === "'") {
      for (i++; i < code.length && code[i] !== c; i++) if (code[i] === '\\') i++;
      i++;
      value = true;
    } else if (c === '`') { i++; skipTemplate(); }
    else if (c === '{' || c === '(' || c === '[') {
      nesting.push(c === '(' && called >= 0 ? called : c);
      called = -1;
      value = false;
      i++;
    } else if (c === '}' || c === ')' || c === ']') {
      i++;
      const opened = nesting.pop();
      if (opened === '`') skipTemplate();
      else value = c !== '}';
      // Followed by a body: a method of that name, not a call.
      if (typeof opened === 'number' && /^\s*\{/.test(code.slice(i))) places.delete(opened);
    } else if (c === '/' && !value) {
      let set = false;
      for (i++; i < code.length && (set || code[i] !== '/') && code[i] !== '\n'; i++) {
        if (code[i] === '\\') i++;
        else if (code[i] === '[') set = true;
        else if (code[i] === ']') set = false;
      }
      i++;
      value = true;
    } else if ((word.lastIndex = i, word.test(code))) {
      const name = code.slice(i, word.lastIndex);
      call.lastIndex = word.lastIndex;
      if (name === 'import' && !afterDot && call.test(code)) {
        places.add(i);
        called = i;
      }
      i = word.lastIndex;
      value = !before.has(name);
    } else {
      value = /[0-9]/.test(c) || (value && /[.+-]/.test(c) && code[i - 1] === c);
      i++;
    }
  }
  let out = '', copied = 0;
  for (const place of places) {
    out += code.slice(copied, place) + '__import__';
    copied = place + 'import'.length;
  }
  return out + code.slice(copied);
};

// An object literal looks like a block: taken for what it must be meant as, as in a console.
const asExpression = (vm, code) => {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return code;
  try {
    new vm.Script('(' + code + '\n)');
    return '(' + code + '\n)';
  } catch {
    return code;
  }
};

const looksLikeModule = (code) =>
  /(?:^|[;}])[ \t]*(?:import\b(?!\s*\()|export\b)|\bimport\s*\.\s*meta\b/m.test(code);
// Whether code has something for `makeRewriter`. The first code of all replaces nothing.
const needsRewriting = ({ code, one_shot }, isFirst) => looksLikeModule(code) ||
  (!one_shot && (isFirst ? /\bconst\b/ : /\b(?:class|const|function|let|var)\b/).test(code));

const prepare = (vm, { id, token, code, one_shot }, rewritten) => {
  const { text, hoisted, names, failure } = rewritten ?? { text: asExpression(vm, code) };
  const url = '\n//# sourceURL=<exec-' + id + '>';
  return {
    type: 'run', id, token, one_shot, names, failure,
    hoisted: hoisted && rewriteImports(hoisted) + url,
    expression: rewriteImports(text) + url,
    lines: code.split(/\r\n|[\n\r\u2028\u2029]/),  // as V8 counts them
  };
};

// Lets any declaration at the top replace any earlier one, and runs modules as scripts. V8's REPL
// mode takes a let for a let and a class, and a var or function for a var or function. So
// - const becomes let, and what assigns to it assigns to a real constant instead, which throws;
// - a declaration whose name is of the other sort becomes assignments, `let x = 1` for example
//   `var [] = [x = 1]`: no value of its own, and names and line numbers stay. What such a
//   declaration still needs is declared by another text, `hoisted`, which is run before.
// As in browsers' consoles, functions of earlier executions see the new value: they look names up.
// Text that the parser does not know is left to V8.
const makeRewriter = (vm, parse, looksLikeModule, asExpression) => {
  const constants = new Set();
  const isNode = (value) => typeof value?.type === 'string';
  const childrenOf = (node) => Object.values(node).flat().filter(isNode);
  const isFunction = ({ type }) => /Function/.test(type);
  // The identifiers that a pattern binds or assigns to, with whether it is `{ x }` for `{ x: x }`.
  const targetsOf = (node, shorthand = false) => {
    switch (node?.type) {
      case 'Identifier': return [{ node, shorthand }];
      case 'ObjectPattern': return node.properties.flatMap(
        (each) => targetsOf(each.type === 'Property' ? each.value : each, each.shorthand));
      case 'ArrayPattern': return node.elements.flatMap((each) => targetsOf(each));
      case 'AssignmentPattern': return targetsOf(node.left, shorthand);
      case 'RestElement': return targetsOf(node.argument);
      default: return [];
    }
  };
  const namesOf = (pattern) => targetsOf(pattern).map(({ node }) => node.name);
  const boundBy = (declaration) => declaration.declarations.flatMap(({ id }) => namesOf(id));
  const assignedBy = ({ type, operator, left, argument }) => {
    if (type === 'UpdateExpression') return targetsOf(argument);
    const assigns = type === 'AssignmentExpression' ? !/^(\|\||&&|\?\?)=/.test(operator)
      : /^For(In|Of)/.test(type);
    return assigns ? targetsOf(left) : [];
  };

  const transform = ({ code, one_shot }, conflicts = new Set()) => {
    const edits = [];
    const replace = (start, end, text) => edits.push({ start, end, text });
    const blank = (start, end) => replace(start, end, code.slice(start, end).replace(/\S/g, ' '));
    const names = { lexical: [], vars: [] };
    const declared = { let: [], var: [] };
    let functions = '', prologue = '';
    const isConflict = (name) => conflicts.has(name);
    const declare = (kind, found) => {
      (kind === 'var' ? names.vars : names.lexical).push(...found);
      for (const name of found) constants[kind === 'const' ? 'add' : 'delete'](name);
      if (!found.some(isConflict)) return false;
      // A var's conflict is a let, which is made anew; a let's is a property of globalThis.
      for (const name of found) {
        if (kind !== 'var' && !isConflict(name)) declared.let.push(name);
        if (kind === 'var') declared[isConflict(name) ? 'let' : 'var'].push(name);
      }
      return true;
    };
    const assign = (start, keywordEnd, end, text = '') => {
      const ended = code[end - 1] === ';';
      replace(start, keywordEnd, 'var [] = [' + text);
      replace(ended ? end - 1 : end, end, '];');
    };
    const ofVariables = (node, parent) => {
      const { kind, start, end, declarations } = node;
      const isHead = /^For/.test(parent?.type) && node !== parent.body;
      if (isHead && kind !== 'var') return;
      if (!/^(const|let|var)$/.test(kind)) return;
      if (!declare(kind, boundBy(node))) {
        if (kind === 'const') replace(start, start + 5, 'let  ');
        return;
      }
      if (isHead) { blank(start, start + 3); return; }
      for (const { id, init } of declarations) {
        if (init) continue;
        const keeps = kind === 'var' && !isConflict(id.name);
        replace(id.end, id.end, ' = ' + (keeps ? id.name : 'void 0'));
      }
      assign(start, start + kind.length, end);
    };
    // Variables that blocks declare for the top.
    const ofBlocks = (node, parent) => {
      if (isFunction(node) || /^Class/.test(node.type)) return;
      if (node.type === 'VariableDeclaration' && node.kind === 'var') ofVariables(node, parent);
      for (const child of childrenOf(node)) ofBlocks(child, node);
    };
    const ofStatement = (node) => {
      if (one_shot) return;
      const { type, start, end, id } = node;
      if (type === 'VariableDeclaration') ofVariables(node);
      else if (type === 'ClassDeclaration') {
        if (declare('let', [id.name])) assign(start, start, end, id.name + ' = ');
      } else if (type === 'FunctionDeclaration') {
        if (!declare('var', [id.name])) return;
        const { line } = node.loc.start;
        functions = functions.padEnd(functions.length + line - 1 - (functions.match(/\n/g) ?? [])
          .length, '\n') + 'let ' + id.name + ' = ' + code.slice(start, end) + ';';
        declared.let.pop();
        blank(start, end);
      } else ofBlocks(node);
    };
    // What one statement assigns to and what it declares inside of it.
    const guardConstants = (statement) => {
      const inner = new Set(), targets = [];
      const visit = (node, parent) => {
        if (node !== statement && node.id) for (const each of namesOf(node.id)) inner.add(each);
        if (node.type === 'VariableDeclaration' && parent) {
          for (const each of boundBy(node)) inner.add(each);
        }
        for (const each of [...(node.params ?? []), node.param].flatMap((it) => namesOf(it))) {
          inner.add(each);
        }
        targets.push(...assignedBy(node));
        for (const child of childrenOf(node)) visit(child, node);
      };
      visit(statement, null);
      if (statement.type === 'VariableDeclaration') {
        for (const each of boundBy(statement)) inner.delete(each);
      }
      for (const { node: { name, start, end }, shorthand } of targets) {
        if (!constants.has(name) || inner.has(name)) continue;
        replace(start, end, (shorthand ? name + ': ' : '') + '__constant__');
        declared.constant = true;
      }
    };
    const importFrom = ({ source, attributes = [] }, wanted, target) => {
      const pairs = attributes.map(({ key, value }) =>
        JSON.stringify(key.name ?? key.value) + ': ' + value.raw).join(', ');
      const options = pairs ? `{ with: { ${pairs} }, assert: { ${pairs} } }` : 'void 0';
      prologue += `var [] = [${target}await __import__(${source.raw}, ${options}, ` +
        `${JSON.stringify(wanted)})];`;
    };
    const nameOf = ({ name, value }) => name ?? value;
    const ofImport = (node) => {
      const locals = node.specifiers.map(({ local }) => local.name);
      names.lexical.push(...locals);
      for (const name of locals) {
        constants.add(name);
        if (!isConflict(name)) declared.let.push(name);
      }
      const wanted = [];
      let pattern = '';
      for (const { type, imported, local } of node.specifiers) {
        if (type === 'ImportNamespaceSpecifier') importFrom(node, [], local.name + ' = ');
        else {
          const name = type === 'ImportDefaultSpecifier' ? 'default' : nameOf(imported);
          wanted.push(name);
          pattern += JSON.stringify(name) + ': ' + local.name + ', ';
        }
      }
      if (pattern || !locals.length) importFrom(node, wanted, pattern && `{ ${pattern}} = `);
      blank(node.start, node.end);
    };
    const ofModuleItem = (node) => {
      const { type, start, end, declaration, source, specifiers } = node;
      if (type === 'ImportDeclaration') ofImport(node);
      else if (type === 'ExportDefaultDeclaration' && !declaration.id) {
        assign(start, declaration.start, declaration.end);
      } else if (declaration) {
        blank(start, declaration.start);
        ofStatement(declaration);
      } else if (/^Export/.test(type)) {
        if (source) importFrom(node, (specifiers ?? []).map(({ local }) => nameOf(local)), '');
        blank(start, end);
      } else ofStatement(node);
    };
    const ofMeta = (node) => {
      if (node.type === 'MetaProperty' && node.meta.name === 'import') {
        replace(node.start, node.end, '__import__.meta');
      }
      for (const child of childrenOf(node)) ofMeta(child);
    };

    const common = { ecmaVersion: 'latest', allowHashBang: true, locations: true };
    let tree, isModule = false;
    try {
      tree = parse(code, { ...common, sourceType: 'script', allowAwaitOutsideFunction: true });
    } catch {
      tree = parse(code, { ...common, sourceType: 'module' });
      isModule = true;
    }
    for (const node of tree.body) ofModuleItem(node);
    if (constants.size) for (const node of tree.body) guardConstants(node.declaration ?? node);
    if (isModule) {
      ofMeta(tree);
      if (code.startsWith('#!')) replace(0, 2, '//');
    }
    let text = '', copied = 0;
    edits.sort((one, other) => one.start - other.start || one.end - other.end);
    for (const { start, end, text: inserted } of edits) {
      text += code.slice(copied, start) + inserted;
      copied = end;
    }
    text += code.slice(copied);
    if (isModule) text = "'use strict';void 0;" + prologue + text;
    const hoisted = functions + (declared.constant ? 'const __constant__ = void 0;' : '') +
      ['let', 'var'].map((kind) => [...new Set(declared[kind])].map((name) => `${kind} ${name};`)
        .join('')).join('');
    return { text, hoisted: hoisted && (isModule ? "'use strict';" : '') + hoisted, names };
  };
  const mentionsConstant = (code) => {
    for (const name of constants) if (code.includes(name)) return true;
    return false;
  };
  const rewrite = (message, conflicts) => {
    const code = asExpression(vm, message.code);
    try {
      return transform({ ...message, code }, conflicts);
    } catch ({ loc, message: said }) {
      if (!loc || !looksLikeModule(code)) return null;
      const description = 'SyntaxError: ' + said.replace(/ \(\d+:\d+\)$/, '');
      const place = { lineNumber: loc.line - 1, columnNumber: loc.column };
      return { text: '', failure: { ...place, exception: { description } } };
    }
  };
  return { rewrite, mentionsConstant };
};

// What writes, in both threads, with nothing that code may have replaced.
const makeWriter = ({ Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared }) => {
  const { CONTROL_FD, LOCK, state } = shared;
  const { compareExchange, notify, store, wait } = Atomics;
  const { from: encode } = Buffer;
  const { stringify } = JSON;
  const { writeSync } = fs;
  const sleeper = new Int32Array(new SharedArrayBuffer(4));
  // At once and whole, also if somebody has made the descriptor non-blocking.
  const writeAll = (fd, data) => {
    for (let done = 0; done < data.length;) {
      try {
        done += writeSync(fd, data, done);
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        wait(sleeper, 0, 0, 1);
      }
    }
  };
  const lock = () => {
    while (compareExchange(state, LOCK, 0, 1) !== 0) wait(state, LOCK, 1);
  };
  const unlock = () => {
    store(state, LOCK, 0);
    notify(state, LOCK, 1);
  };
  const send = (message) => {
    const frame = encode('size' + stringify(message));
    const size = frame.length - 4;
    for (let i = 0; i < 4; i++) frame[i] = size >>> (24 - 8 * i);
    lock();
    try {
      writeAll(CONTROL_FD, frame);
    } finally {
      unlock();
    }
  };
  // Returns when the other thread is not, or no longer, in the middle of sending.
  const letOtherSend = () => { lock(); unlock(); };
  return { letOtherSend, send, writeAll };
};

// Listens to the control socket while the main thread is busy.
const worker = new Worker(`
  const fs = require('node:fs');
  const net = require('node:net');
  const inspector = require('node:inspector');
  const { parentPort, workerData: shared } = require('node:worker_threads');
  const vm = require('node:vm');
  const { CONTROL_FD, INTERRUPTED, PHASE, RUNNING, INTERRUPTING, state } = shared;
  const { check, dissect, choose } = (${questions})(inspector);
  // Here, where code can't have replaced what they use.
  const rewriteImports = ${rewriteImports};
  const asExpression = ${asExpression};
  const prepare = ${prepare};
  const needsRewriting = ${needsRewriting};
  // Node's own parser, which it has for its REPL.
  const looksLikeModule = ${looksLikeModule};
  const { rewrite, mentionsConstant } = (${makeRewriter})(vm, (text, options) =>
    require('internal/deps/acorn/acorn/dist/acorn').parse(text, options),
  looksLikeModule, asExpression);
  const { letOtherSend, send } = (${makeWriter})({
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
      send({ type: 'answer', id: message.id, ...choose(message, message.names.split('\\0')) });
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
      current = message;
      const rewritten = needsRewriting(message, false) || mentionsConstant(message.code)
        ? rewrite(message) : null;
      const prepared = prepare(vm, message, rewritten);
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
    if (isTaken) ({ id: running, token } = first);
    else take(first);
    const socket = new net.Socket({ fd: CONTROL_FD, readable: true, writable: true });
    socket.on('data', receive);
    socket.on('close', () => process.exit());
    socket.on('error', () => process.exit());
  };
`, {
  eval: true, workerData: shared, execArgv: ['--expose-internals'],
  // Else Node opens its own streams to pass the thread's output on; see Output.
  stdout: true, stderr: true,
});
const reallyExit = process.reallyExit.bind(process);
const exit = process.exit.bind(process);
worker.on('exit', () => reallyExit(1));
const post = worker.postMessage.bind(worker);

const { Session } = inspector;
let session = new Session();
session.connect();
const { post: postToInspector } = session;
const { prototype: everyObject } = Object;
// Node makes JSON of a request, in which a toJSON that code gave to all objects must have no say:
// it is away until the request's last property has been read.
const ask = (method, params, callback) => {
  const theirs = getOwnPropertyDescriptor(everyObject, 'toJSON');
  if (theirs !== undefined && deleteProperty(everyObject, 'toJSON')) {
    const restore = () => { defineProperty(everyObject, 'toJSON', theirs); };
    defineProperty(params, 'last', { __proto__: null, enumerable: true, get: restore });
  }
  apply(postToInspector, session, [method, params, callback]);
};
let exiting = false;
process.on('exit', () => {
  exiting = true;
  concludeOneShot();
  session.disconnect();
  // Reached when a handler that failed has stopped the exit: without the inspector there is no
  // going on.
  setImmediate(() => reallyExit(process.exitCode || 1));
});

// Output is written at once and whole: Node's own streams for pipes buffer, and make the pipe
// non-blocking for every process that shares it.
const { send, writeAll } = makeWriter({
  Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared,
});
// It has no state that an interrupt in the middle of a write could leave behind.
class Output extends Writable {
  constructor(fd) {
    super({ decodeStrings: false });
    Object.assign(this, { fd, _type: 'pipe', _isStdio: true, destroySoon: this.destroy });
  }
  write(chunk, encoding, callback) {
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding];
    if (typeof chunk !== 'string' && !ArrayBuffer.isView(chunk)) {
      throw Object.assign(new TypeError('The "chunk" argument must be of type string or an ' +
        'instance of Buffer, TypedArray, or DataView'), { code: 'ERR_INVALID_ARG_TYPE' });
    }
    writeAll(this.fd, typeof chunk === 'string' ? Buffer.from(chunk, encoding)
      : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    if (typeof callback === 'function') process.nextTick(callback);
    return true;
  }
  end(chunk, encoding, callback) {
    if (typeof chunk === 'string' || ArrayBuffer.isView(chunk)) this.write(chunk, encoding);
    const last = [chunk, encoding, callback].find((given) => typeof given === 'function');
    if (last) process.nextTick(last);
    return this;
  }
  destroy() { return this; }
}
for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
  const stream = new Output(fd);
  Object.defineProperty(process, name, {
    configurable: true, enumerable: true, get: () => stream,
  });
}

// Modules are looked for from the working directory, from where the interpreter has started, and
// from the project, in this order. The first failure is the one that is told.
const cwd = process.cwd.bind(process);
const start = cwd();
const roots = () => [cwd(), start, '/project'];
const requireFromStart = createRequire(start + '/');
const locate = (specifier) => {
  if (typeof specifier !== 'string' || !specifier || apply(startsWith, specifier, ['node:'])) {
    return specifier;
  }
  const directories = roots();
  let failure;
  for (let i = 0; i < directories.length; i++) {
    try {
      return requireFromStart.resolve(specifier, { paths: [directories[i]] });
    } catch (error) {
      failure ??= error;
      if (error.code !== 'MODULE_NOT_FOUND') break;
    }
  }
  throw failure;
};
const require_ = Object.assign(function require(specifier) {
  return requireFromStart(locate(specifier));
}, {
  resolve: Object.assign(function resolve(specifier, options) {
    return options ? requireFromStart.resolve(specifier, options) : locate(specifier);
  }, { paths: requireFromStart.resolve.paths }),
  main: globalThis.module,  // for `if (require.main === module)`
  extensions: requireFromStart.extensions,
  cache: requireFromStart.cache,
});
const setGlobal = (name, value) => Object.defineProperty(globalThis, name, {
  value, configurable: true, writable: true, enumerable: false,
});
setGlobal('require', require_);
setGlobal('module', require_.main);
process.nextTick(setGlobal, 'module', require_.main);  // Node takes it away after this script
// Code evaluated by the inspector has no way to load modules by import(), but a module has.
const importers = { __proto__: null, [start]: (specifier, options) => import(specifier, options) };
const importFrom = (directory, specifier, options) => {
  if (importers[directory] === undefined) {
    const name = directory + '/[eval]';
    const module = new Module(name);
    module._compile('module.exports = (specifier, options) => import(specifier, options)', name);
    importers[directory] = module.exports;
  }
  return importers[directory](specifier, options);
};
const importAnywhere = async (specifier, options) => {
  const directories = roots();
  let failure;
  for (let i = 0; i < directories.length; i++) {
    try {
      return await importFrom(directories[i], specifier, options);
    } catch (error) {
      failure ??= error;
      // A module that was found may fail with the same code, over what it imports itself.
      const isMissing = error?.code === 'ERR_MODULE_NOT_FOUND'
        && / imported from .*\/\[eval\d*\]$/.test(error.message);
      if (!isMissing) throw error;
    }
  }
  throw failure;
};
const import_ = async (specifier, options, names = []) => {
  const found = await importAnywhere(specifier, options);
  for (let i = 0; i < names.length; i++) {
    if (hasOwn(found, names[i])) continue;
    throw new SyntaxError("The requested module '" + specifier +
      "' does not provide an export named '" + names[i] + "'");
  }
  return found;
};
import_.meta = {
  __proto__: null,
  get dirname() { return cwd(); },
  get filename() { return cwd() + '/[eval]'; },
  get url() { return pathToFileURL(cwd() + '/[eval]').href; },
  resolve: (specifier) => {
    const found = locate(specifier);
    return found[0] === '/' ? pathToFileURL(found).href
      : builtinModules.includes(found) ? 'node:' + found : found;
  },
};
Object.defineProperty(globalThis, '__import__', { value: import_, enumerable: false });
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

// The value of the last line as text. Timers, child processes, servers and streams are seldom
// meant to be read, and may have hundreds of lines: they are their names.
const { isPrototypeOf } = Object.prototype;
const EMITTER = EventEmitter.prototype;
const TIMERS = [setTimeout(() => {}), setImmediate(() => {})];
clearTimeout(TIMERS[0]);
clearImmediate(TIMERS[1]);
for (let i = 0; i < 2; i++) TIMERS[i] = Object.getPrototypeOf(TIMERS[i]);
const isAny = (prototype, value) => apply(isPrototypeOf, prototype, [value]);
const show = (value) => {
  const text = inspect(value);
  if (isProxy(value)) return text;
  const isLong = isAny(TIMERS[0], value) || isAny(TIMERS[1], value)
    || text.length > 400 && isAny(EMITTER, value);
  if (!isLong) return text;
  const end = apply(indexOf, text, [' {']);
  if (end < 0) return text;
  const start = apply(startsWith, text, ['<ref ']) ? apply(indexOf, text, ['> ']) + 2 : 0;
  return '[' + apply(slice, text, [start, end]) + ']';
};

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
const { getActiveResourcesInfo, nextTick } = process;
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

const run = ({ id, token, one_shot, names, failure, hoisted, expression, lines }) => {
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
  if (one_shot) beginOneShot(id, token);
  else takeExitCode();  // of what ran between executions
  const before = one_shot || countResources();
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
  process.emit = function (name, ...values) {
    if (name === 'exit' && last === 'beforeExit') oneShot.ranDry = true;
    last = name;
    // An interrupt that has begun needs the loop to be answered.
    if (load(state, PHASE) === INTERRUPTING) worker.ref();
    const heard = apply(emit, this, [name, ...values]);
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

// What completion looks up. No getter is called but those that were there before any code, no
// proxy is asked, and nothing is used that code may have replaced.
const { isArray } = Array;
const { isView } = ArrayBuffer;
const global_ = globalThis;
const NOTHING = {};
const PROTOTYPES = {
  __proto__: null, string: String.prototype, number: Number.prototype, bigint: BigInt.prototype,
  boolean: Boolean.prototype, symbol: Symbol.prototype,
};
// Since Node 22 the description of a web interface, FormData for one, loads what is behind it,
// which would take a third more time to start; then none of those has a getter.
const GETTABLE = getOwnPropertyDescriptor(global_, 'AbortController')?.get ? ownKeys(global_)
  : ['Buffer', 'crypto', 'navigator', 'performance', 'process', ...builtinModules];
const OWN_GETTERS = [
  ...GETTABLE.map((name) => getOwnPropertyDescriptor(global_, name)?.get),
  ...['stdout', 'stderr'].map((name) => getOwnPropertyDescriptor(process, name).get),
].filter(Boolean);
const objectOf = (value) => {
  const kind = typeof value;
  return (kind === 'object' || kind === 'function') && value !== null ? value
    : PROTOTYPES[kind] ?? null;
};
const getProperty = (value, name) => {
  let object = objectOf(value);
  for (let depth = 0; object !== null && depth < 100 && !isProxy(object); depth++) {
    const found = getOwnPropertyDescriptor(object, name);
    if (found !== undefined) {
      if (hasOwn(found, 'value')) return found.value;
      for (let i = 0; i < OWN_GETTERS.length; i++) {
        if (OWN_GETTERS[i] === found.get) return apply(found.get, value, []);
      }
      return NOTHING;
    }
    object = getPrototypeOf(object);
  }
  return NOTHING;
};
const lexicalNames = () => {
  let names = [];
  ask('Runtime.globalLexicalScopeNames', {}, (error, answer) => {
    if (!error) names = answer.names;
  });
  return names;
};
// Reading a let, const or class runs nothing.
const getLexical = (name) => {
  let value = NOTHING;
  const key = '__nsm_take_' + pid;
  const take = (found) => { value = found; };
  defineProperty(global_, key, { __proto__: null, value: take, configurable: true });
  ask('Runtime.evaluate', { expression: key + '(' + name + ')', silent: true }, () => {});
  deleteProperty(global_, key);
  return value;
};
const complete = ({ id, steps, prefix }) => {
  let names = '', count = 0;  // one text: an object of as many names takes a second to send
  const add = (name) => {
    if (typeof name === 'string' && count < 200000 && apply(startsWith, name, [prefix])
      && !apply(includes, name, ['\0'])) {
      names += name + '\0';
      count++;
    }
  };
  const lexical = lexicalNames();
  let object = global_;
  if (steps.length) {
    let value = NOTHING;
    for (let i = 0; i < lexical.length; i++) {
      if (lexical[i] === steps[0]) value = getLexical(steps[0]);
    }
    if (value === NOTHING) {
      value = steps[0] === 'globalThis' ? global_ : getProperty(global_, steps[0]);
    }
    for (let i = 1; i < steps.length && value !== NOTHING; i++) {
      value = getProperty(value, steps[i]);
    }
    object = value === NOTHING ? null : objectOf(value);
  } else for (let i = 0; i < lexical.length; i++) {
    if (lexical[i] !== '__constant__') add(lexical[i]);
  }
  for (let depth = 0; object !== null && depth < 100 && !isProxy(object); depth++) {
    // Of millions of elements no name could be completed.
    const many = isView(object) || (isArray(object) && object.length > 1000);
    const keys = many ? ['length'] : ownKeys(object);
    for (let i = 0; i < keys.length; i++) add(keys[i]);
    object = getPrototypeOf(object);
  }
  post({ type: 'names', id, steps, prefix, names });
};
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
const isTaken = first.type === 'run' && !needsRewriting(first, true);
post({ type: 'first', first, isTaken });
if (isTaken) {
  state[PHASE] = RUNNING;
  onMessage(prepare(require('node:vm'), first));
}
})();
