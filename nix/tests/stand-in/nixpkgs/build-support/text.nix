# Files written from text, and shell scripts, checked as nixpkgs checks them.
#
# Deviates from nixpkgs: shellcheck is run only where the host's processor has one in the clone's
# .venv (x86_64).
{ lib }:
pkgs:
let
  shell = pkgs.runtimeShell;
  checkSyntax = ''${shell} -n -O extglob "$target"'';

  writeTextFile =
    {
      name,
      text,
      executable ? false,
      destination ? "",
      checkPhase ? "",
      meta ? { },
      passthru ? { },
    }:
    pkgs.runCommand name
      {
        inherit passthru text;
        passAsFile = [ "text" ];
        meta =
          lib.optionalAttrs (executable && lib.hasPrefix "/bin/" destination) {
            mainProgram = lib.removePrefix "/bin/" destination;
          }
          // meta;
      }
      ''
        target=$out${lib.escapeShellArg destination}
        mkdir -p "$(dirname "$target")"
        cp "$textPath" "$target"
        ${lib.optionalString executable ''chmod +x "$target"''}
        ${checkPhase}
      '';

  writeScriptIn =
    destination: name: text:
    writeTextFile {
      inherit destination name text;
      executable = true;
    };

  writeShellScriptIn =
    destination: name: text:
    writeTextFile {
      inherit destination name;
      executable = true;
      text = "#!${shell}\n${text}\n";
      checkPhase = checkSyntax;
    };

  writeShellApplication =
    {
      name,
      text,
      runtimeInputs ? [ ],
      runtimeEnv ? { },
      meta ? { },
      passthru ? { },
      checkPhase ? null,
      excludeShellChecks ? [ ],
      extraShellCheckFlags ? [ ],
      bashOptions ? [
        "errexit"
        "nounset"
        "pipefail"
      ],
      inheritPath ? true,
    }:
    let
      exclude = lib.optional (
        excludeShellChecks != [ ]
      ) "--exclude=${lib.concatStringsSep "," excludeShellChecks}";
      shellcheck = lib.optionalString pkgs.stdenv.hostPlatform.isx86_64 ''
        ${lib.getExe pkgs.shellcheck} ${lib.escapeShellArgs (exclude ++ extraShellCheckFlags)} "$target"
      '';
    in
    writeTextFile {
      inherit meta name passthru;
      executable = true;
      destination = "/bin/${name}";
      text = lib.concatStrings [
        "#!${shell}\n"
        (lib.concatMapStrings (option: "set -o ${option}\n") bashOptions)
        (lib.concatStrings (
          lib.mapAttrsToList (variable: value: ''
            ${lib.toShellVar variable value}
            export ${variable}
          '') runtimeEnv
        ))
        (lib.optionalString (runtimeInputs != [ ]) ''

          export PATH="${lib.makeBinPath runtimeInputs}${lib.optionalString inheritPath ":$PATH"}"
        '')
        "\n${text}\n"
      ];
      checkPhase = if checkPhase != null then checkPhase else "${checkSyntax}\n${shellcheck}";
    };
in
{
  inherit writeShellApplication writeTextFile;

  writeText = name: text: writeTextFile { inherit name text; };
  writeTextDir =
    path: text:
    writeTextFile {
      name = baseNameOf path;
      destination = "/${path}";
      inherit text;
    };
  writeScript = writeScriptIn "";
  writeScriptBin = name: writeScriptIn "/bin/${name}" name;
  writeShellScript = writeShellScriptIn "";
  writeShellScriptBin = name: writeShellScriptIn "/bin/${name}" name;
}
