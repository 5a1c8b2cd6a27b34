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
