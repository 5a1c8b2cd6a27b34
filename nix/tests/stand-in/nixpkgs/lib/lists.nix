# lib.lists
let
  inherit (builtins)
    concatLists
    elem
    elemAt
    filter
    foldl'
    genList
    head
    length
    listToAttrs
    sort
    tail
    ;
in
rec {
  inherit
    concatLists
    elem
    elemAt
    filter
    foldl'
    genList
    head
    length
    sort
    tail
    ;
  inherit (builtins)
    all
    any
    concatMap
    groupBy
    isList
    map
    partition
    ;

  singleton = value: [ value ];
  toList = value: if builtins.isList value then value else [ value ];
  optional = condition: value: if condition then [ value ] else [ ];
  optionals = condition: values: if condition then values else [ ];
  foldr =
    function: end: list:
    let
      count = length list;
      from = index: if index == count then end else function (elemAt list index) (from (index + 1));
    in
    from 0;
  foldl = foldl';
  imap0 = function: list: genList (index: function index (elemAt list index)) (length list);
  imap1 = function: imap0 (index: function (index + 1));
  forEach = list: function: map function list;
  flatten = value: if builtins.isList value then builtins.concatMap flatten value else [ value ];
  remove = value: filter (other: other != value);
  reverseList = list: genList (index: elemAt list (length list - 1 - index)) (length list);
  last = list: elemAt list (length list - 1);
  init = list: genList (elemAt list) (length list - 1);
  take = count: list: genList (elemAt list) (if count < length list then count else length list);
  drop =
    count: list:
    if count >= length list then
      [ ]
    else
      genList (index: elemAt list (count + index)) (length list - count);
  range = first: final: if first > final then [ ] else genList (index: first + index) (final - first + 1);
  unique = foldl' (kept: value: if elem value kept then kept else kept ++ [ value ]) [ ];
  subtractLists = without: filter (value: !elem value without);
  intersectLists = kept: filter (value: elem value kept);
  count = predicate: list: length (filter predicate list);
  findFirst =
    predicate: default: list:
    let
      found = filter predicate list;
    in
    if found == [ ] then default else head found;
  zipListsWith =
    function: first: second:
    genList (index: function (elemAt first index) (elemAt second index)) (
      if length first < length second then length first else length second
    );
  zipLists = zipListsWith (fst: snd: { inherit fst snd; });
  naturalSort = sort builtins.lessThan;
}
