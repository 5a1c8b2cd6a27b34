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
