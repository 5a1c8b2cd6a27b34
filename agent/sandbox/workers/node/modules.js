// Modules are looked for from the script's directory, from the working directory, from where the
// interpreter has started, and from the project, in this order. The first failure is the one that
// is told.
const cwd = process.cwd.bind(process);
const start = cwd();
const { dirname } = require('node:path');
let script;  // path of the file whose code runs; undefined for other code
// Without an iterator, which code may have replaced.
const roots = () => script ? [dirname(script), cwd(), start, '/project'] : [cwd(), start, '/project'];
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
