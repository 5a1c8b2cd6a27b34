# What a wrapper does on the host's side, before it becomes bwrap. jail.nix puts it into the script;
# docs/reference/formats.md says what callers give. It starts no program: it runs before every session.
#
# NSM_MODE (run, session or template), NSM_STORE and NSM_BINDS_DESCRIPTORS are set above.

nsm_fail() {
  printf 'nsm: %s\n' "$1" >&2
  exit 64 # EX_USAGE of sysexits.h
}

# nsm_number VARIABLE DEFAULT: its value in `number`.
nsm_number() {
  number=${!1:-$2}
  [[ $number =~ ^[0-9]{1,8}$ ]] || nsm_fail "$1 is '$number': expected digits."
  number=$((10#$number))
}

# nsm_size VARIABLE DEFAULT RESULT: its value, MiB, as bytes in RESULT.
nsm_size() {
  nsm_number "$1" "$2"
  ((number > 0)) || nsm_fail "$1 is 0: expected a number of MiB."
  printf -v "$3" %d $((number * 1024 * 1024))
}

# nsm_descriptor VARIABLE: it names one that is open, and does so as the kernel writes it. bwrap closes
# it, and with one of the standard ones would hang, or lose the code's output.
nsm_descriptor() {
  nsm_number "$1" ""
  ((number > 2)) || nsm_fail "$1 is $number: expected a descriptor of its own, from 3 on."
  [[ -e /proc/self/fd/$number && ! /proc/self/fd/$number -ef $0 ]] || # the shell's own, for this script
    nsm_fail "$1 is $number: there is no such descriptor."
  printf -v "$1" %d "$number"
}

# nsm_project: shows it, read-only.
nsm_project() {
  local target=${PROJECT_MOUNT:-/project} place
  case ${PROJECT_MODE:-readonly} in
    readonly) ;;
    overlay) nsm_fail "PROJECT_MODE=overlay is not available yet; use readonly." ;;
    *) nsm_fail "PROJECT_MODE is '$PROJECT_MODE': expected readonly." ;;
  esac
  case $target/ in
    // | /*//* | */./* | */../* | [!/]*)
      nsm_fail "PROJECT_MOUNT is '$target': expected an absolute path, other than /, without '.', '..' and empty parts."
      ;;
  esac
  # What every jail has of its own; nothing else is mounted there, above or below.
  for place in /bin /dev /etc /proc /run/nsm /sbin /tmp /usr /workspace "$NSM_STORE"; do
    case $place/ in "$target"/*) nsm_fail "PROJECT_MOUNT=$target would hide $place." ;; esac
    case $target/ in "$place"/*) nsm_fail "PROJECT_MOUNT=$target is in $place." ;; esac
  done
  if [[ -n ${NSM_PROJECT_FD:-} ]]; then
    RUNTIME_ARGS+=(--ro-bind-fd "$NSM_PROJECT_FD" "$target")
    return
  fi
  case ${PROJECT_DIR:-} in
    /*) ;;
    *) nsm_fail "PROJECT_DIR is '${PROJECT_DIR:-}': expected an absolute path." ;;
  esac
  [[ -d $PROJECT_DIR ]] || nsm_fail "PROJECT_DIR=$PROJECT_DIR is not a directory."
  RUNTIME_ARGS+=(--ro-bind "$PROJECT_DIR" "$target")
}

umask 022
HOME=/workspace # where jail.nix's base mounts a file system

# Root is no jailer: whoever is root on the host owns files in /proc/sys, which a jail cannot make
# read-only for their owner. The same user as in nsmd.model.settings.DEFAULT_JAIL_UID.
NSM_STARTER=()
read -r _ outside _ </proc/self/uid_map
if [[ $EUID == 0 && $outside == 0 ]]; then
  NSM_STARTER=(chroot --userspec=65530:65530 --groups= --skip-chdir /)
fi

# bwrap hands on whatever it inherits, so it gets nothing but what it uses and closes. Through one of
# a directory, code would get around the read-only bind.
for variable in NSM_INFO_FD NSM_PROJECT_FD NSM_POLICY_FD NSM_VARIABLES_FD; do
  [[ -z ${!variable:-} ]] || nsm_descriptor "$variable"
done
NSM_PROJECT=${PROJECT_DIR:-}${NSM_PROJECT_FD:-} # whether there is one
[[ $NSM_BINDS_DESCRIPTORS == yes ]] || unset NSM_PROJECT_FD
for path in /proc/self/fd/*; do
  descriptor=${path##*/}
  case $descriptor in
    0 | 1 | 2 | "${NSM_INFO_FD:-}" | "${NSM_PROJECT_FD:-}" | *[!0-9]*) continue ;;
    "${NSM_POLICY_FD:-}" | "${NSM_VARIABLES_FD:-}") continue ;;
  esac
  [[ $path -ef $0 ]] || exec {descriptor}>&- # the shell reads this script from one
done
cd /

if [[ -n ${NSM_INFO_FD:-} ]]; then
  RUNTIME_ARGS+=(--info-fd "$NSM_INFO_FD")
fi
if [[ -n ${NSM_POLICY_FD:-} ]]; then
  RUNTIME_ARGS+=(--perms 0444 --file "$NSM_POLICY_FD" /run/nsm/policy.json)
fi
if [[ -n ${NSM_VARIABLES_FD:-} ]]; then
  RUNTIME_ARGS+=(--args "$NSM_VARIABLES_FD") # on its command line, everyone could read them
fi
if [[ -n $NSM_PROJECT ]]; then
  nsm_project
fi
if [[ $NSM_MODE == template ]]; then
  # Forks mount their own over these, and over /dev/shm, /dev/pts and /proc.
  RUNTIME_ARGS+=(--dir /dev/shm --remount-ro /tmp --remount-ro /workspace)
else
  # It names the keys that the host's user has in the kernel, whatever the namespaces.
  [[ ! -e /proc/keys ]] || RUNTIME_ARGS+=(--ro-bind /dev/null /proc/keys)
  nsm_size NSM_SHM_MB 64 NSM_SHM_BYTES
  nsm_size NSM_TMP_MB 256 NSM_TMP_BYTES
  nsm_size NSM_WORKSPACE_MB 512 NSM_WORKSPACE_BYTES
fi
# What is a file system of its own below them stays as it is.
RUNTIME_ARGS+=(--remount-ro /dev --remount-ro /)
