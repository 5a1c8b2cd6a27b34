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

const prepare = (vm, { id, token, code, one_shot, stdin, argv }, rewritten) => {
  const { text, hoisted, names, failure } = rewritten ?? { text: asExpression(vm, code) };
  const url = '\n//# sourceURL=<exec-' + id + '>';
  return {
    type: 'run', id, token, one_shot, stdin, argv, names, failure,
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
      // A var's conflict is a let, which is declared again; a let's is a property of globalThis.
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
