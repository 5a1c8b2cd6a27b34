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
