# lib.trivial: functions of functions, numbers and files.
rec {
  inherit (builtins)
    add
    bitAnd
    bitOr
    bitXor
    functionArgs
    isBool
    isFloat
    isFunction
    isInt
    isPath
    lessThan
    seq
    deepSeq
    sub
    trace
    typeOf
    ;

  id = value: value;
  const = value: _: value;
  flip =
    function: a: b:
    function b a;
  pipe = builtins.foldl' (value: function: function value);
  fix =
    function:
    let
      self = function self;
    in
    self;
  extends =
    overlay: function: final:
    let
      previous = function final;
    in
    previous // overlay final previous;
  composeExtensions =
    first: second: final: previous:
    let
      applied = first final previous;
    in
    applied // second final (previous // applied);

  min = a: b: if a < b then a else b;
  max = a: b: if a > b then a else b;
  mod = a: b: a - b * (a / b);
  boolToString = value: if value then "true" else "false";
  xor = a: b: (a || b) && !(a && b);

  importJSON = path: builtins.fromJSON (builtins.readFile path);
  importTOML = path: builtins.fromTOML (builtins.readFile path);

  setFunctionArgs = function: formals: {
    __functor = _: function;
    __functionArgs = formals;
  };
  inPureEvalMode = !(builtins ? currentSystem);
}
