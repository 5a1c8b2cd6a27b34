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
