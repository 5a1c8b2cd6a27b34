// Strips the types from TypeScript: by Node itself since 22.13, else by esbuild or TypeScript in the
// environment or the project, each a process of its own. JavaScript stays as it is, and so does what
// cannot be stripped.
const makeTypeStripper = (vm, parse, asExpression) => {
  const { stripTypeScriptTypes } = require('node:module');
  const { spawnSync } = require('node:child_process');
  const { existsSync } = require('node:fs');
  const isAllowed = (run) => {
    try {
      run();
      return true;
    } catch {
      return false;
    }
  };
  const isJavaScript = (code) => isAllowed(() => new vm.Script(asExpression(vm, code)))
    || isAllowed(() => new vm.Script('(async () => {' + code + '\n})'))
    || isAllowed(() => parse(code, {
      ecmaVersion: 'latest', allowHashBang: true, sourceType: 'module',
    }));
  const looksTyped = (code) => new RegExp('\\b(?:interface|type|enum|namespace)\\s+[\\w$]+|'
    + '[\\w$)\\]?]\\s*:\\s*[A-Za-z_${[(\'"]|\\b(?:as|satisfies)\\s+[A-Za-z_${[(]|'
    + '\\bimport\\s+type\\b|[\\w$]<[\\w$]').test(code);
  const byNode = (code) => {
    const modes = ['strip', 'transform'];
    for (const mode of modes) {
      try {
        return stripTypeScriptTypes(code, { mode });
      } catch {}
    }
    return '';
  };
  // Imports that are used by later code only are kept, as Node keeps them.
  const SETTINGS = { compilerOptions: { verbatimModuleSyntax: true } };
  const byProgram = (program, options) => (code) => {
    const { status, stdout } = spawnSync(program, options, {
      input: code, encoding: 'utf8', cwd: '/', timeout: 10000, maxBuffer: 64 * 1024 * 1024,
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    return status === 0 ? stdout : '';
  };
  const TRANSPILE = `
    const { transpileModule } = require(process.argv[1]);
    const text = require('node:fs').readFileSync(0, 'utf8');
    const { compilerOptions } = ${JSON.stringify(SETTINGS)};
    Object.assign(compilerOptions, { target: 99, module: 99 });
    process.stdout.write(transpileModule(text, { compilerOptions }).outputText);
  `;
  const findWay = () => {
    if (stripTypeScriptTypes) return byNode;
    for (const modules of ['/node_modules', '/project/node_modules']) {
      const esbuild = ['--loader=ts', '--target=esnext', '--charset=utf8', '--log-level=silent',
        '--tsconfig-raw=' + JSON.stringify(SETTINGS)];
      const names = [`@esbuild/${process.platform}-${process.arch}/bin/esbuild`, '.bin/esbuild'];
      for (const name of names) {
        const program = modules + '/' + name;
        if (existsSync(program)) return byProgram(program, esbuild);
      }
      const typescript = modules + '/typescript/lib/typescript.js';  // not since TypeScript 7
      if (existsSync(typescript)) return byProgram(process.execPath, ['-e', TRANSPILE, typescript]);
    }
    return undefined;
  };
  let way;
  return (code) => {
    if (isJavaScript(code) || !looksTyped(code)) return { code };
    way ??= findWay();
    if (!way) {
      return { code, note: 'if this is TypeScript, it needs esbuild, which strips its types: '
        + '`nsm env add NAME --npm esbuild` makes an environment with it' };
    }
    const made = way(code);
    return made && isJavaScript(made) ? { code: made } : { code };
  };
};
