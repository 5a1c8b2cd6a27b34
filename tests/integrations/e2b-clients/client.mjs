// E2B's own clients for JavaScript, unchanged; run by test_javascript.py. Prints the name of each part that works.
import assert from 'node:assert';
import { Sandbox } from '@e2b/code-interpreter';
import * as e2b from 'e2b';

const box = await Sandbox.create({ timeoutMs: 600_000, metadata: { k: 'v' }, envs: { A: 'b' } });

const parts = {
  async code() {
    const out = [];
    const code = 'import os\nx = 20\nprint("hi", os.environ["A"])\nx + 1';
    const ran = await box.runCode(code, { onStdout: (message) => out.push(message.line) });
    assert.equal(ran.text, '21');
    assert.deepEqual(out, ['hi b\n']);
    assert.equal((await box.runCode('1/0')).error.name, 'ZeroDivisionError');
    const plot = await box.runCode('import matplotlib.pyplot as p; p.plot([1]); p.show()');
    assert(plot.results.some((result) => result.png));
  },
  async contexts() {
    const context = await box.createCodeContext({ cwd: '/tmp', language: 'python' });
    const ran = await box.runCode('import os; os.getcwd()', { context });
    assert.equal(ran.text, "'/tmp'");
    assert((await box.listCodeContexts()).some((each) => each.id === context.id));
    await box.restartCodeContext(context);
    await box.removeCodeContext(context);
    await assert.rejects(box.runCode('1', { context }), e2b.NotFoundError);
    const late = box.runCode('import time; time.sleep(1000)', { timeoutMs: 500 });
    await assert.rejects(late, e2b.TimeoutError);
    assert.equal((await box.runCode('x')).text, '20');
  },
  async commands() {
    const ran = await box.commands.run('echo hi; echo err >&2', { cwd: '/tmp' });
    assert.deepEqual([ran.stdout, ran.stderr], ['hi\n', 'err\n']);
    const failed = (error) => error instanceof e2b.CommandExitError && error.exitCode === 3;
    await assert.rejects(box.commands.run('exit 3'), failed);
    const cat = await box.commands.run('cat', { background: true, stdin: true });
    await box.commands.sendStdin(cat.pid, 'x\n');
    await box.commands.closeStdin(cat.pid);
    assert.equal((await cat.wait()).stdout, 'x\n');
    const long = await box.commands.run('sleep 1000', { background: true });
    assert((await box.commands.list()).some((process) => process.pid === long.pid));
    assert(await long.kill());
    await assert.rejects(long.wait());
    await assert.rejects(box.commands.run('sleep 1000', { timeoutMs: 500 }), e2b.TimeoutError);
  },
  async terminal() {
    let got = '';
    const onData = (data) => { got += Buffer.from(data).toString(); };
    const pty = await box.pty.create({ cols: 91, rows: 31, onData });
    await box.pty.resize(pty.pid, { cols: 50, rows: 20 });
    await box.pty.sendInput(pty.pid, Buffer.from('stty size; exit\n'));
    await pty.wait();
    assert(got.includes('20 50'), got);
  },
  async files() {
    assert.equal((await box.files.write('a/b é.txt', 'hello')).path, '/home/user/a/b é.txt');
    assert.equal(await box.files.read('a/b é.txt'), 'hello');
    const data = new Uint8Array([0, 255]).buffer;
    await box.files.write([{ path: 'x/1', data: '1' }, { path: 'x/2', data }]);
    assert.deepEqual([...await box.files.read('x/2', { format: 'bytes' })], [0, 255]);
    const listed = (await box.files.list('x')).map((entry) => [entry.name, entry.type]);
    assert.deepEqual(listed, [['1', 'file'], ['2', 'file']]);
    assert.deepEqual([await box.files.makeDir('m'), await box.files.makeDir('m')], [true, false]);
    await box.files.rename('x/1', 'y');
    await box.files.remove('x');
    assert.equal(await box.files.exists('x'), false);
    await assert.rejects(box.files.read('nope'), e2b.FileNotFoundError);
  },
  async watch() {
    let note;
    const seen = new Promise((resolve) => { note = resolve; });
    const watch = await box.files.watchDir('m', (event) => event.name === 'f' && note());
    await box.files.write('m/f', '1');
    await seen;
    await watch.stop();
  },
  async 'a huge file'() {
    const data = Buffer.alloc(120 * 1024 * 1024, 'nsm');
    await box.files.write('huge', new Blob([data]));
    const back = await box.files.read('huge', { format: 'bytes' });
    assert(data.equals(Buffer.from(back)));
    await box.files.remove('huge');
  },
  async list() {
    const page = Sandbox.list({ query: { metadata: { k: 'v' } } });
    const items = await page.nextItems();
    assert.deepEqual(items.map((item) => item.sandboxId), [box.sandboxId]);
    const again = await Sandbox.connect(box.sandboxId);
    assert.equal((await again.runCode('x')).text, '20');
    await box.setTimeout(500_000);
    assert(await box.isRunning());
    await assert.rejects(box.pause(), e2b.SandboxError);
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_00' }), e2b.AuthenticationError);
  },
  async end() {
    assert(await box.kill());
    assert.equal(await box.kill(), false);
    await assert.rejects(box.commands.run('true'), e2b.SandboxError);
    await assert.rejects(box.getInfo(), e2b.SandboxNotFoundError);
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(name);
}
