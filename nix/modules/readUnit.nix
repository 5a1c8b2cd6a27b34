# A unit file of systemd as attributes, so that the files in systemd/ are the only definition.
#
# Type: lib -> path -> { SECTION = { KEY = String or [String] } }
lib: path:
let
  lines = builtins.filter (line: line != "" && !(lib.hasPrefix "#" line)) (
    lib.splitString "\n" (builtins.readFile path)
  );

  read =
    state: line:
    let
      section = builtins.match "\\[(.+)]" line;
      pair = builtins.match "([A-Za-z]+)=(.*)" line;
      key = builtins.elemAt pair 0;
      value = builtins.elemAt pair 1;
      old = state.units.${state.section} or { };
    in
    if section != null then
      state // { section = builtins.head section; }
    else if pair == null || state.section == null then
      throw "nsm: ${toString path}: ${line} is neither [Section] nor Key=value in one."
    else
      state
      // {
        units = state.units // {
          ${state.section} = old // {
            ${key} = if old ? ${key} then lib.toList old.${key} ++ [ value ] else value;
          };
        };
      };
in
(builtins.foldl' read {
  section = null;
  units = { };
} lines).units
