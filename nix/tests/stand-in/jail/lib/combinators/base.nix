# What jails have unless they are given other base permissions.
{
  combinators,
  pkgs,
  ...
}:
let
  inherit (combinators)
    add-path
    add-pkg-deps
    add-runtime
    compose
    fwd-env
    noescape
    ro-bind
    unsafe-add-raw-args
    ;
in
{
  base = compose [
    (unsafe-add-raw-args "--proc /proc --dev /dev --tmpfs /tmp --tmpfs ~")
    (ro-bind "${pkgs.bash}/bin/sh" "/bin/sh")
    (state: state // { closures = state.closures ++ [ "${pkgs.bash}" ]; })
    (add-path "/bin")
    (add-pkg-deps [ pkgs.coreutils ])
    (unsafe-add-raw-args "--clearenv")
    (fwd-env "LANG")
    (fwd-env "HOME")
    (fwd-env "TERM")
  ];

  # Users' and groups' names, kept below the caller's home directory, as jail.nix does.
  fake-passwd =
    let
      directory = "~/.local/share/jail.nix";
      shell = "${pkgs.shadow}/bin/nologin";
    in
    compose [
      (add-runtime ''
        if ! [ -e ${directory}/passwd ] || ! [ -e ${directory}/group ]; then
          mkdir -p ${directory}
          printf 'root:x:0:0::/root:%s\n%s:x:%s:%s::%s:%s\n' ${shell} \
            "$(id -un)" "$(id -u)" "$(id -g)" "$HOME" ${shell} >${directory}/passwd
          printf 'root:x:0:\n%s:x:%s:\n' "$(id -gn)" "$(id -g)" >${directory}/group
        fi
      '')
      (ro-bind (noescape "${directory}/passwd") "/etc/passwd")
      (ro-bind (noescape "${directory}/group") "/etc/group")
    ];
}
