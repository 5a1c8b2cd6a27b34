# Tests of ../../modules/readUnit.nix: the unit files of systemd/ as attributes.
{ pkgs }:
let
  read = import ../../modules/readUnit.nix pkgs.lib;
in
{
  testSocket = {
    expr = (read ../../../systemd/nsm-supervisor.socket).Socket.ListenStream;
    expected = "%t/nsm/control.sock";
  };
  testService = {
    expr = builtins.attrNames (read ../../../systemd/nsm-supervisor.service);
    expected = [
      "Install"
      "Service"
      "Unit"
    ];
  };
  testSeveralOfAKey = {
    expr = (read ./configs/several.service).Service;
    expected.Environment = [
      "A=1"
      "B="
    ];
  };
  testNoUnit = {
    expr = read ./configs/no-section.service;
    expectedError.msg = "no-section[.]service: Type=notify is neither \\[Section\\] nor Key=value in one[.]";
  };
}
