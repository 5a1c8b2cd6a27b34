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
    return { status };
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
