# lib.strings
let
  inherit (builtins)
    concatStringsSep
    elemAt
    filter
    genList
    isList
    isString
    length
    match
    replaceStrings
    split
    stringLength
    substring
    ;
  inherit (import ./attrsets.nix) getBin getOutput;
  special = [
    "\\"
    "."
    "*"
    "+"
    "?"
    "("
    ")"
    "["
    "{"
    "^"
    "$"
    "|"
  ];
in
rec {
  inherit
    concatStringsSep
    isString
    match
    replaceStrings
    split
    stringLength
    substring
    ;
  inherit (builtins)
    compareVersions
    fromJSON
    parseDrvName
    readFile
    toJSON
    toString
    unsafeDiscardStringContext
    ;

  concatStrings = concatStringsSep "";
  concatMapStrings = function: list: concatStrings (map function list);
  concatMapStringsSep =
    separator: function: list:
    concatStringsSep separator (map function list);
  concatLines = concatMapStrings (line: "${line}\n");
  concatMapAttrsStringSep =
    separator: function: attributes:
    concatMapStringsSep separator (name: function name attributes.${name}) (
      builtins.attrNames attributes
    );
  optionalString = condition: text: if condition then text else "";
  hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
  hasSuffix =
    suffix: text:
    let
      rest = stringLength text - stringLength suffix;
    in
    rest >= 0 && substring rest (stringLength suffix) text == suffix;
  hasInfix = infix: text: match ".*${escapeRegex infix}.*" (replaceStrings [ "\n" ] [ " " ] text) != null;
  removePrefix =
    prefix: text: if hasPrefix prefix text then substring (stringLength prefix) (-1) text else text;
  removeSuffix =
    suffix: text:
    if hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
  stringToCharacters = text: genList (index: substring index 1 text) (stringLength text);
  stringAsChars = function: text: concatMapStrings function (stringToCharacters text);
  splitString = separator: text: filter isString (split (escapeRegex separator) (toString text));
  replicate = count: text: concatStrings (genList (_: text) count);
  trim =
    text:
    let
      found = match "[ \t\r\n]*(.*[^ \t\r\n])[ \t\r\n]*" text;
    in
    if found == null then "" else builtins.head found;
  escape = list: replaceStrings list (map (character: "\\${character}") list);
  escapeRegex = escape special;
  escapeNixString = text: escape [ "$" ] (builtins.toJSON text);
  escapeShellArg =
    value:
    let
      text = toString value;
    in
    if match "[[:alnum:],._+:@%/-]+" text == null then
      "'${replaceStrings [ "'" ] [ "'\\''" ] text}'"
    else
      text;
  escapeShellArgs = concatMapStringsSep " " escapeShellArg;
  isValidPosixName = name: match "[a-zA-Z_][a-zA-Z0-9_]*" name != null;
  toShellVar =
    name: value:
    if !isValidPosixName name then
      throw "toShellVar: ${name} is not a valid shell variable name"
    else if builtins.isAttrs value && !(value ? outPath) then
      "declare -A ${name}=(${
        concatMapStringsSep " " (key: "[${escapeShellArg key}]=${escapeShellArg value.${key}}") (
          builtins.attrNames value
        )
      })"
    else if isList value then
      "declare -a ${name}=(${escapeShellArgs value})"
    else
      "${name}=${escapeShellArg value}";
  toShellVars = attributes: concatMapStringsSep "\n" (name: toShellVar name attributes.${name}) (
    builtins.attrNames attributes
  );
  toLower = replaceStrings upperChars lowerChars;
  toUpper = replaceStrings lowerChars upperChars;
  lowerChars = stringToCharacters "abcdefghijklmnopqrstuvwxyz";
  upperChars = stringToCharacters "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  toInt =
    text:
    let
      digits = match "[ \t]*(-?[0-9]+)[ \t]*" text;
    in
    if digits == null then
      throw "Could not convert ${escapeNixString text} to int."
    else
      builtins.fromJSON (builtins.head digits);
  fileContents = file: removeSuffix "\n" (builtins.readFile file);
  sanitizeDerivationName =
    text:
    let
      plain = builtins.unsafeDiscardStringContext (toString text);
      replaced = concatStrings (
        map (part: if isList part then "-" else part) (split "[^[:alnum:]+._?=-]+" plain)
      );
      stripped = builtins.elemAt (match "\\.*(.*)" replaced) 0;
      start = stringLength stripped - 207;
      short = substring (if start < 0 then 0 else start) (-1) stripped;
    in
    if short == "" then "unknown" else short;
  versionOlder = a: b: builtins.compareVersions b a == 1;
  versionAtLeast = a: b: !versionOlder a b;
  getName = value: if isString value then (builtins.parseDrvName value).name else value.pname or (builtins.parseDrvName value.name).name;
  getVersion = value: if isString value then (builtins.parseDrvName value).version else value.version or (builtins.parseDrvName value.name).version;
  nameFromURL =
    url: separator:
    builtins.head (splitString separator (elemAt (splitString "/" url) (length (splitString "/" url) - 1)));

  makeSearchPath =
    directory: packages:
    concatMapStringsSep ":" (path: "${path}/${directory}") (filter (path: path != null) packages);
  makeSearchPathOutput =
    output: directory: packages:
    makeSearchPath directory (map (getOutput output) packages);
  makeBinPath = packages: makeSearchPath "bin" (map getBin packages);
  makeLibraryPath = makeSearchPathOutput "lib" "lib";
  isStorePath =
    value:
    (isString value || value ? outPath)
    && substring 0 1 (toString value) == "/"
    && builtins.dirOf (toString value) == builtins.storeDir;
}
