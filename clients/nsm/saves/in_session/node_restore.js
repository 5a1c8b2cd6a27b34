// Restores the state of a Node session from files, and writes what came of each thing.
'use strict';
const fs = require('node:fs');
const v8 = require('node:v8');

const MAX_WHY = 300;

const words = (error) => {
  try {
    return `${error.name}: ${error.message}`.slice(0, MAX_WHY);
  } catch {
    return 'it failed';
  }
};

// Defines a global variable as an assignment to an unknown name does.
const define = (name, value) => Object.defineProperty(globalThis, name, {
  value, configurable: true, enumerable: true, writable: true,
});

exports.restore = (directory, load) => {
  const state = JSON.parse(fs.readFileSync(`${directory}/state.json`, 'utf8'));
  const rows = [];
  const attempt = (name, kind, make) => {
    let why = '';
    try {
      make();
    } catch (error) {
      why = words(error);
    }
    rows.push({ name, kind, why, again: null });
  };
  Object.assign(process.env, state.environ);
  try {
    process.chdir(state.cwd);
  } catch (error) {
    rows.push({ name: 'the working directory', kind: 'directory', why: words(error), again: null });
  }
  for (const [name, { module, property }] of Object.entries(state.imports)) {
    attempt(name, 'import', () => {
      const found = load(module);
      define(name, property === undefined ? found : found[property]);
    });
  }
  let values = {}, failure;
  try {
    values = v8.deserialize(fs.readFileSync(`${directory}/values`));
  } catch (error) {
    failure = error;
  }
  for (const name of state.groups.flatMap(({ names }) => names)) {
    attempt(name, 'variable', () => {
      if (failure) throw failure;
      define(name, values[name]);
    });
  }
  // A class may need another one, and its static fields may need functions.
  let pending = state.definitions, final = false;
  while (pending.length) {
    const left = [];
    for (const each of pending) {
      try {
        (0, eval)(each.source);
        rows.push({ name: each.name, kind: 'definition', why: '', again: null });
      } catch (error) {
        if (!final) left.push(each);
        else rows.push({ name: each.name, kind: 'definition', why: words(error), again: null });
      }
    }
    final = left.length === pending.length;
    pending = left;
  }
  for (const [name, of] of Object.entries(state.aliases)) {
    attempt(name, 'definition', () => {
      if (!(of in globalThis)) throw new ReferenceError(`${of} is not there`);
      define(name, globalThis[of]);
    });
  }
  for (const { name, why, again } of state.failed) rows.push({ name, kind: 'variable', why, again });
  const report = `${directory}/report.json`;
  fs.writeFileSync(`${report}.new`, JSON.stringify({ version: process.versions.node, rows }));
  fs.renameSync(`${report}.new`, report);
};
