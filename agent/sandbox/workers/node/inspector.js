// The inspector, by which code is evaluated.
const { Session } = inspector;
let session = new Session();
session.connect();
const { post: postToInspector } = session;
const { prototype: everyObject } = Object;
// Node makes JSON of a request, in which a toJSON that code gave to all objects must have no say:
// it is away until the request's last property has been read.
const ask = (method, params, callback) => {
  const theirs = getOwnPropertyDescriptor(everyObject, 'toJSON');
  if (theirs !== undefined && deleteProperty(everyObject, 'toJSON')) {
    const restore = () => { defineProperty(everyObject, 'toJSON', theirs); };
    defineProperty(params, 'last', { __proto__: null, enumerable: true, get: restore });
  }
  apply(postToInspector, session, [method, params, callback]);
};
let exiting = false;
process.on('exit', () => {
  exiting = true;
  concludeOneShot();
  session.disconnect();
  // Reached when a handler that failed has stopped the exit: without the inspector there is no
  // going on.
  setImmediate(() => reallyExit(process.exitCode || 1));
});
