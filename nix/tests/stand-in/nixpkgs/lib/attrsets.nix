# lib.attrsets
let
  inherit (builtins)
    attrNames
    elemAt
    filter
    foldl'
    isAttrs
    length
    listToAttrs
    mapAttrs
    ;
in
rec {
  inherit attrNames isAttrs listToAttrs mapAttrs;
  inherit (builtins)
    attrValues
    catAttrs
    getAttr
    hasAttr
    intersectAttrs
    removeAttrs
    ;

  nameValuePair = name: value: { inherit name value; };
  optionalAttrs = condition: attributes: if condition then attributes else { };
  genAttrs = names: function: listToAttrs (map (name: nameValuePair name (function name)) names);
  mapAttrs' =
    function: attributes:
    listToAttrs (map (name: function name attributes.${name}) (attrNames attributes));
  mapAttrsToList =
    function: attributes: map (name: function name attributes.${name}) (attrNames attributes);
  attrsToList = mapAttrsToList nameValuePair;
  concatMapAttrs =
    function: attributes: mergeAttrsList (mapAttrsToList function attributes);
  mergeAttrsList = foldl' (merged: attributes: merged // attributes) { };
  filterAttrs =
    predicate: attributes:
    removeAttrs attributes (
      filter (name: !predicate name attributes.${name}) (attrNames attributes)
    );
  foldlAttrs =
    function: start: attributes:
    foldl' (result: name: function result name attributes.${name}) start (attrNames attributes);
  getAttrs = names: attributes: genAttrs names (name: attributes.${name});
  zipAttrsWith = builtins.zipAttrsWith;
  mapAttrsRecursive =
    function:
    let
      at = path: mapAttrs (
        name: value: if isAttrs value then at (path ++ [ name ]) value else function (path ++ [ name ]) value
      );
    in
    at [ ];

  hasAttrByPath =
    path: attributes:
    path == [ ]
    || (
      isAttrs attributes
      && attributes ? ${builtins.head path}
      && hasAttrByPath (builtins.tail path) attributes.${builtins.head path}
    );
  attrByPath =
    path: default: attributes:
    if hasAttrByPath path attributes then foldl' (value: name: value.${name}) attributes path else default;
  getAttrFromPath =
    path:
    attrByPath path (throw "cannot find attribute '${builtins.concatStringsSep "." path}'");
  setAttrByPath =
    path: value:
    if path == [ ] then
      value
    else
      { ${builtins.head path} = setAttrByPath (builtins.tail path) value; };

  recursiveUpdateUntil =
    predicate:
    let
      update =
        path: left: right:
        left
        // mapAttrs (
          name: value:
          if left ? ${name} && !predicate (path ++ [ name ]) left.${name} value then
            update (path ++ [ name ]) left.${name} value
          else
            value
        ) right;
    in
    update [ ];
  recursiveUpdate = recursiveUpdateUntil (
    _: left: right:
    !(isAttrs left && isAttrs right)
  );

  isDerivation = value: value.type or null == "derivation";
  recurseIntoAttrs = attributes: attributes // { recurseForDerivations = true; };
  # The first (or the named) output of a package; a string is its own.
  getOutput =
    output: package:
    if package ? outputSpecified && package.outputSpecified then
      package
    else
      package.${output} or package.out or package;
  getBin = getOutput "bin";
  getLib = getOutput "lib";
  getDev = getOutput "dev";
}
