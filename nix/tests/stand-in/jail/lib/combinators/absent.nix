# Combinators that jail.nix has and the layer does not use: whoever starts to use one writes it here.
{ lib, ... }:
lib.genAttrs
  [
    "camera"
    "dbus"
    "dbus-unsafe"
    "gpu"
    "gui"
    "jail-to-host-channel"
    "mount-cwd"
    "network"
    "notifications"
    "open-urls-in-browser"
    "persist-home"
    "persisthome"
    "pipewire"
    "pulse"
    "readonly-paths-from-var"
    "readonly-runtime-args"
    "readwrite-runtime-args"
    "runtime-deep-ro-bind"
    "time-zone"
    "unsafe-dbus"
    "unsafe-x11"
    "wayland"
    "wrap-entry"
    "xwayland"
  ]
  (name: throw "the stand-in for jail.nix has no ${name} yet; see nix/tests/stand-in/jail/lib/combinators")
